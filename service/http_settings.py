"""Settings of the HTTP interface: TLS, sign-in and the rate limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from urllib.parse import urlsplit

from headway.contract.views.identity import Role
from service.domain.identity.sign_in import AdmissionRules
from service.environment import SettingsError, number_of, path_of, switch_of, text_of, words_of

RATE_PER_S = 200.0
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """The identity provider, and the roles that its users get."""

    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    """Client secret at the provider; None if Headway is registered as a public client."""
    device_client_id: str = ""
    """Client id of command lines, which keep no secret; empty for that of Headway itself."""
    scopes: tuple[str, ...] = ("openid", "email")
    name_claim: str = "email"
    rules: AdmissionRules = field(default_factory=AdmissionRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Settings of the API's address, its TLS and its clients."""

    public_url: str = "http://127.0.0.1:8123"
    """URL of the service for browsers and rented machines."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    ca_file: Path | None = None
    """Certificates of Postgres, Redis and the provider to trust in addition to those of the system."""
    oidc: OidcSettings | None = None
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """Proxies whose `X-Forwarded-For` header is trusted."""
    webhook_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks that are not public but that webhooks may send to."""
    metrics_token: str = field(default="", repr=False)
    """Bearer token of monitoring for `/metrics`; empty if monitoring has none of its own."""
    metrics_public: bool = False
    """True if everybody may read `/metrics`."""
    rate_per_s: float = 0.0
    """Rate limit of one token in requests per second; 0 for no limit."""

    @property
    def secure(self) -> bool:
        """True if browsers reach the service by TLS, terminated here or at a proxy."""
        return self.public_url.startswith("https://")


def read_http_settings(env: Mapping[str, str]) -> HttpSettings:
    """Return the HTTP settings of an environment.

    Raises:
        SettingsError: a setting is wrong.
    """
    certificate, key = path_of(env, "HEADWAY_TLS_CERT"), path_of(env, "HEADWAY_TLS_KEY")
    if (certificate is None) != (key is None):
        raise SettingsError("HEADWAY_TLS_CERT and HEADWAY_TLS_KEY go together; set both, or none.")
    ca_file = path_of(env, "HEADWAY_CA_FILE")
    for name, path in (
        ("HEADWAY_TLS_CERT", certificate),
        ("HEADWAY_TLS_KEY", key),
        ("HEADWAY_CA_FILE", ca_file),
    ):
        if path is not None and not path.is_file():
            raise SettingsError(f"{name} names {path}, which is not a file.")
    scheme = "http" if certificate is None else "https"
    own = f"{scheme}://{env.get('HEADWAY_HOST', '127.0.0.1')}:{env.get('HEADWAY_PORT', '8123')}"
    return HttpSettings(
        public_url=(env.get("HEADWAY_PUBLIC_URL", "").strip() or own).rstrip("/"),
        tls_cert=certificate,
        tls_key=key,
        ca_file=ca_file,
        oidc=_oidc(env),
        metrics_token=env.get("HEADWAY_METRICS_TOKEN", "").strip(),
        metrics_public=switch_of(env, "HEADWAY_METRICS_PUBLIC", default=False),
        trusted_proxies=_networks(env, "HEADWAY_TRUSTED_PROXIES"),
        webhook_networks=_networks(env, "HEADWAY_WEBHOOK_NETWORKS"),
        rate_per_s=number_of(env, "HEADWAY_RATE_PER_S", RATE_PER_S, 0, 1e6),
    )


def _networks(env: Mapping[str, str], name: str) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(word, strict=False) for word in words_of(env, name))
    except ValueError as error:
        raise SettingsError(f"{name}: {error}; write addresses, or networks such as 10.0.0.0/8.") from None


def _oidc(env: Mapping[str, str]) -> OidcSettings | None:
    issuer = env.get("HEADWAY_OIDC_ISSUER", "").strip()
    if not issuer:
        return None
    parts = urlsplit(issuer)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise SettingsError(
            f"HEADWAY_OIDC_ISSUER must be an https:// URL, not {issuer!r}: an eavesdropper could sign in as any user."
        )
    role = env.get("HEADWAY_OIDC_DEFAULT_ROLE", "").strip()
    if role and role not in set(Role):
        raise SettingsError(f"HEADWAY_OIDC_DEFAULT_ROLE must be one of {', '.join(Role)}, not {role!r}.")
    return OidcSettings(
        issuer=issuer,
        client_id=text_of(env, "HEADWAY_OIDC_CLIENT_ID"),
        client_secret=env.get("HEADWAY_OIDC_CLIENT_SECRET", "").strip() or None,
        device_client_id=env.get("HEADWAY_OIDC_DEVICE_CLIENT_ID", "").strip(),
        scopes=words_of(env, "HEADWAY_OIDC_SCOPES", "openid email"),
        name_claim=env.get("HEADWAY_OIDC_NAME_CLAIM", "").strip() or "email",
        rules=AdmissionRules(
            admins=frozenset(words_of(env, "HEADWAY_OIDC_ADMINS")),
            default_role=Role(role) if role else None,
            default_project=env.get("HEADWAY_OIDC_DEFAULT_PROJECT", "").strip() or "default",
        ),
    )
