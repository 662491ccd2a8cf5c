"""Trusted certificate authorities: those of the system, and your own from `HEADWAY_CA_FILE`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import httpx

from headway.errors import HeadwayError
from headway.proxies import proxy_for

CA_FILE = "HEADWAY_CA_FILE"


def trusted(ca_file: str | None) -> ssl.SSLContext:
    """Return a TLS context that checks servers' certificates and names, and trusts those of `ca_file` (PEM) too.

    Raises:
        HeadwayError: the file cannot be read, or holds no certificate.
    """
    context = httpx.create_ssl_context()
    if ca_file:
        _load(context, ca_file, f"{CA_FILE} must name a readable file in PEM format.")
    return context


def trusted_by(env: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context of `trusted` for an environment. Raise HeadwayError for an unusable file."""
    return trusted(ca_file_of(env))


def trusted_for(url: str, env: Mapping[str, str], own: str | None = None) -> ssl.SSLContext:
    """Return the TLS context for the service at `url`, as `trusted_by` does, which trusts the file `own` too.

    Loading the authorities takes a tenth of a command's time. If no connection uses TLS, return a context
    that trusts nobody.
    """
    proxy = proxy_for(url, env)
    if any(one.lower().startswith("https:") for one in (url, proxy.address if proxy else "")):
        context = trusted_by(env)
        if own:
            _load(context, own, "Run `headway up` again, which writes it.")
        return context
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def certificate_hint(error: Exception) -> str:
    """Return what to do about a certificate that was not accepted; empty for another error."""
    if "CERTIFICATE_VERIFY_FAILED" not in str(error):
        return ""
    return f"Set {CA_FILE} to the file of the authority that signed the server's certificate, and use a name that it has."


def ca_file_of(env: Mapping[str, str]) -> str | None:
    """Return the file of your own authorities if the environment names one."""
    return env.get(CA_FILE, "").strip() or None


def _load(context: ssl.SSLContext, ca_file: str, remedy: str) -> None:
    """Add the authorities of a file. Raise HeadwayError if it cannot be used."""
    try:
        context.load_verify_locations(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise HeadwayError(f"{ca_file} cannot be read as a certificate file: {error}.", remedy) from error
