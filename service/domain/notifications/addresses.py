"""The network addresses that messages may be sent to."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Network = IPv4Network | IPv6Network

_NAT64: Final = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))
"""IPv6 networks that a gateway translates to IPv4: their last 32 bits are the IPv4 address."""


def is_allowed(address: str, allowed: Sequence[Network]) -> bool:
    """Return True if messages may be sent to an address: it is public, or in a network of `allowed`.

    Private, loopback, link-local (with the metadata services of clouds), shared, multicast and reserved
    addresses are not public. An IPv6 address that carries an IPv4 address is as public as that one.

    Raises:
        ValueError: the text is no IP address.
    """
    found = ip_address(address.partition("%")[0])
    if any(found in network for network in allowed if network.version == found.version):
        return True
    carried = _carried(found)
    if carried is not None:
        return is_allowed(str(carried), allowed)
    return found.is_global and not found.is_multicast and not found.is_reserved


def _carried(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address carries, or None."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in _NAT64):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return None
