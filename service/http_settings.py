"""Settings of the edge: TLS, signing in, and how fast anybody may ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from urllib.parse import urlsplit

from headway.contract.identity import Role
from service.domain.sign_in import AdmissionRules
from service.environment import SettingsError, number_of, path_of, text_of, words_of

RATE_PER_S = 200.0
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """The provider at which people sign in, and who becomes what there."""

    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    """None: Headway is registered there as a public client."""
    device_client_id: str = ""
    """As what command lines are registered, which keep no secret; empty: as Headway itself is."""
    scopes: tuple[str, ...] = ("openid", "email")
    name_claim: str = "email"
    rules: AdmissionRules = field(default_factory=AdmissionRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """How the API is reached, and by whom."""

    public_url: str = "http://127.0.0.1:8123"
    """The service as browsers and rented machines reach it."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    ca_file: Path | None = None
    """Certificates to trust beside those of the system: of Postgres, Redis and the provider."""
    oidc: OidcSettings | None = None
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """Whose word on where a request comes from is taken (`X-Forwarded-For`)."""
    metrics_token: str = field(default="", repr=False)
    """What monitoring shows to read `/metrics`; empty: nothing."""
    rate_per_s: float = 0.0
    """Requests that one token may make, on average; 0: as many as it likes."""

    @property
    def secure(self) -> bool:
        """Whether browsers reach the service by TLS, here or at a proxy before it."""
        return self.public_url.startswith("https://")


def read_http_settings(env: Mapping[str, str]) -> HttpSettings:
    """The settings.

    Raises:
        SettingsError: one is wrong.
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
            raise SettingsError(f"{name} names {path}, which is no file.")
    scheme = "http" if certificate is None else "https"
    own = f"{scheme}://{env.get('HEADWAY_HOST', '127.0.0.1')}:{env.get('HEADWAY_PORT', '8123')}"
    return HttpSettings(
        public_url=(env.get("HEADWAY_PUBLIC_URL", "").strip() or own).rstrip("/"),
        tls_cert=certificate,
        tls_key=key,
        ca_file=ca_file,
        oidc=_oidc(env),
        metrics_token=env.get("HEADWAY_METRICS_TOKEN", "").strip(),
        trusted_proxies=_networks(env, "HEADWAY_TRUSTED_PROXIES"),
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
            f"HEADWAY_OIDC_ISSUER must be an https:// URL, not {issuer!r}: who listens on the way could sign in as anybody."
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
