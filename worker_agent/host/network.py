"""This host's own address, and the network interface that owns it."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

import psutil

from headway import routes


def own_address(url: str) -> str:
    """Return the address of this host on its route to the service; loopback if the service is on this host.

    Return the host's name if there is no route.
    """
    parts = urlsplit(url)
    return routes.own_address(parts.hostname or "127.0.0.1", parts.port or 80) or socket.gethostname()


def interface_of(address: str) -> str | None:
    """Return the network interface that owns the address or one of the addresses of the name; None if none does."""
    try:
        wanted = {_ip(target[0]) for *_, target in socket.getaddrinfo(address, None)}
    except OSError:
        return None
    # A name may also have an address of the loopback interface, as Debian's /etc/hosts gives the host's own name.
    outside = {one for one in wanted if not one.is_loopback} or wanted
    for name, addresses in psutil.net_if_addrs().items():
        internet = (one.address for one in addresses if one.family in {socket.AF_INET, socket.AF_INET6})
        if not outside.isdisjoint(map(_ip, internet)):
            return name
    return None


def interface_env(address: str, url: str) -> dict[str, str]:
    """Return the variables that bind gloo and NCCL to the interface of the node's address.

    Without them, gloo takes the address to which the host's name resolves, which other hosts may not reach. Where no
    interface owns the address (behind NAT), the interface on the route to the service is taken.
    """
    name = interface_of(address) or interface_of(own_address(url))
    if name is None:
        return {}
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}


def _ip(text: str | int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(str(text).partition("%")[0])  # without the zone of a link-local address
