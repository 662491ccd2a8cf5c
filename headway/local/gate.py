"""`python -m headway.local.gate ADDRESS PORT BEHIND CERTIFICATE KEY`: TLS on the network for a server on loopback.

The wheel's Redis is built without TLS. This program listens on ADDRESS:PORT with the certificate, and passes the
bytes of each connection on to the port BEHIND of 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys

from headway.local.ports import HOST

_PIECE_BYTES = 1 << 16
_HANDSHAKE_S = 10.0


async def serve(address: str, port: int, behind: int, context: ssl.SSLContext) -> asyncio.Server:
    """Return the running gate. Raise OSError if the address cannot be used."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            inner = await asyncio.open_connection(HOST, behind)
            ways = [
                asyncio.create_task(_pass_on(reader, inner[1])),
                asyncio.create_task(_pass_on(inner[0], writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            inner[1].close()
        writer.close()

    return await asyncio.start_server(
        connected, address, port, ssl=context, ssl_handshake_timeout=_HANDSHAKE_S
    )


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()


async def _run(address: str, port: int, behind: int, certificate: str, key: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with await serve(address, port, behind, context) as server:
        await server.serve_forever()


def main() -> None:
    """Run the gate until SIGTERM."""
    address, port, behind, certificate, key = sys.argv[1:]
    asyncio.run(_run(address, int(port), int(behind), certificate, key))


if __name__ == "__main__":
    main()
