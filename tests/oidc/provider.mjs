// An OpenID provider with PKCE and the device flow, from the package `oidc-provider`. Arguments: the redirect URI.
// Prints its issuer; ends with its standard input. Whoever types a login is let in with any password.
import { createServer } from 'node:net'
import { Provider } from 'oidc-provider'

const free = () => new Promise((resolve) => {
  const probe = createServer().listen(0, '127.0.0.1', () => {
    const { port } = probe.address()
    probe.close(() => resolve(port))
  })
})

const port = await free()
const issuer = `http://127.0.0.1:${port}`
const device = 'urn:ietf:params:oauth:grant-type:device_code'
const provider = new Provider(issuer, {
  clients: [
    { client_id: 'headway', client_secret: 's', redirect_uris: [process.argv[2]], grant_types: ['authorization_code'] },
    { client_id: 'terminal', token_endpoint_auth_method: 'none', grant_types: [device], response_types: [], redirect_uris: [] },
  ],
  features: { deviceFlow: { enabled: true }, devInteractions: { enabled: true } },
  pkce: { required: () => true },
  conformIdTokenClaims: false,
  claims: { openid: ['sub'], email: ['email', 'email_verified'] },
  findAccount: async (_, id) => ({
    accountId: id,
    claims: async () => ({ sub: id, email: `${id}@example.org`, email_verified: true }),
  }),
})
provider.listen(port, '127.0.0.1', () => console.log(issuer))
process.stdin.resume().on('end', () => process.exit(0))
