"""Whom to trust: the authorities that everybody trusts, and one's own from `HEADWAY_CA_FILE`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import httpx

from headway.errors import HeadwayError

CA_FILE = "HEADWAY_CA_FILE"


def trusted(ca_file: str | None) -> ssl.SSLContext:
    """What checks the certificates of servers: their names too. `ca_file` holds certificates (PEM) to trust beside the usual.

    Raises:
        HeadwayError: the file cannot be read, or holds no certificate.
    """
    context = httpx.create_ssl_context()
    if ca_file:
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise HeadwayError(
                f"{ca_file} cannot be used as a file of certificates: {error}.",
                f"{CA_FILE} must name a readable file in PEM format.",
            ) from error
    return context


def trusted_by(env: Mapping[str, str]) -> ssl.SSLContext:
    """What `trusted` gives for an environment. Raises HeadwayError."""
    return trusted(ca_file_of(env))


def ca_file_of(env: Mapping[str, str]) -> str | None:
    """The file of one's own authorities, where the environment names one."""
    return env.get(CA_FILE, "").strip() or None
