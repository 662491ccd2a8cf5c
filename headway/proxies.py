"""Choice of a proxy from the environment. A service on this host is never reached through a proxy."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from headway.errors import HeadwayError

_LOOPBACK: Final = ("localhost", "127.0.0.0/8", "::1")
_EXEMPTIONS: Final = ("no_proxy", "NO_PROXY")
_PROXIES: Final = frozenset({"http_proxy", "https_proxy", "all_proxy"})


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, and the variable that names it."""

    variable: str
    address: str

    def __str__(self) -> str:
        from headway.contract.values.redaction import without_credentials  # noqa: PLC0415  # for messages only

        return f"{self.variable}={without_credentials(self.address)}"


def is_loopback(host: str) -> bool:
    """Return True for a name or address of this host itself."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    with suppress(ValueError):
        address = ipaddress.ip_address(name.strip("[]"))
        mapped = getattr(address, "ipv4_mapped", None) or address
        return bool(mapped.is_loopback or mapped.is_unspecified)
    return False


def proxy_for(url: str, env: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for requests to `url`, or None if they are sent directly.

    `no_proxy` may hold names, which stand for their subdomains too, addresses, networks and `*`.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    port = None
    with suppress(ValueError):  # of a port that is none, which the request names
        port = parts.port or (443 if parts.scheme.lower() in {"https", "wss"} else 80)
    exempt = re.split(r"[,\s]+", next(filter(None, map(env.get, _EXEMPTIONS)), ""))
    if not host or is_loopback(host) or any(_matches(one, host, port) for one in exempt if one):
        return None
    scheme = parts.scheme.lower()
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    found = next((name for name in names if env.get(name)), None)
    if found is None:
        return None
    return Proxy(found, env[found] if "://" in env[found] else f"http://{env[found]}")


def loopback_exemptions(env: Mapping[str, str]) -> dict[str, str]:
    """Return values of `no_proxy` for libraries that choose a proxy themselves; none without a proxy."""
    if not any(value and name.lower() in _PROXIES for name, value in env.items()):
        return {}
    kept = next(filter(None, map(env.get, _EXEMPTIONS)), "")
    return dict.fromkeys(_EXEMPTIONS, ",".join(filter(None, (kept, *_LOOPBACK, "127.0.0.1"))))


@contextmanager
def naming(proxy: Proxy | None, url: str) -> Iterator[None]:
    """Raise HeadwayError with the variable for a proxy that the HTTP library cannot use."""
    try:
        yield
    except ImportError:
        if proxy is None:
            raise
        raise HeadwayError(
            f"{proxy} names a SOCKS proxy, which needs another package.",
            f"Install it: pip install 'httpx[socks]'. Or {_directly(url)}",
        ) from None
    except ValueError:
        if proxy is None:
            raise
        raise HeadwayError(
            f"{proxy} is not the address of a proxy: it must be http://, https:// or socks5://.",
            f"Correct it, or {_directly(url)}",
        ) from None


def proxy_hint(proxy: Proxy, url: str) -> str:
    """Return what to do about a service that did not answer through a proxy."""
    return f"The request went through the proxy of {proxy}. Check it, or {_directly(url)}"


def _directly(url: str) -> str:
    return f"set NO_PROXY={urlsplit(url).hostname} to reach {url} without a proxy."


def _matches(exempt: str, host: str, port: int | None) -> bool:
    if exempt == "*":
        return True
    with_port = re.fullmatch(r"([^:]+|\[.+\]):(\d+)", exempt)
    if with_port is not None:
        if int(with_port[2]) != port:
            return False
        exempt = with_port[1]
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        with suppress(ValueError):
            return address in ipaddress.ip_network(exempt.strip("[]"), strict=False)
        return False
    name = exempt.lower().removeprefix("*").removeprefix(".").removesuffix(".")
    return host.lower() == name or host.lower().endswith(f".{name}")
