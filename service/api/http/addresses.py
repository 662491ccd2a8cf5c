"""Client addresses of requests."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import TypeAlias

from starlette.types import Scope

Networks: TypeAlias = Sequence[IPv4Network | IPv6Network]


def client_address(scope: Scope, trusted: Networks) -> str:
    """Return the address of the client.

    It is the address of the connection. If that is a trusted proxy, it is the last address in
    `X-Forwarded-For` that is not a trusted proxy. Clients can forge everything before that.
    """
    client = scope.get("client")
    address = str(client[0]) if client else "unknown"
    if not trusted or not _within(address, trusted):
        return address
    forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    for hop in reversed([one.strip() for value in forwarded for one in value.split(",")]):
        if _is_address(hop):
            address = hop
        if not _within(hop, trusted):
            break
    return address


def _within(address: str, among: Networks) -> bool:
    return _is_address(address) and any(ip_address(address) in one for one in among)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
