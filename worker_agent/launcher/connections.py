"""Listening socket of a job's store, and the check for remote clients."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from pathlib import Path

_ESTABLISHED = "01"


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket on the port: on loopback only if `host` is loopback, else on every interface.

    Raises:
        OSError: the port is taken.
    """
    if _is_loopback(host):
        return socket.create_server(("127.0.0.1", port), backlog=1024)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", port), backlog=1024)


def has_remote_clients(port: int) -> bool:
    """Return True if a process on another host is connected to the port."""
    ends = _established()
    return any(
        local.endswith(f":{port:04X}") and (remote, local) not in ends  # on one host both ends are listed
        for local, remote in ends
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _established() -> set[tuple[str, str]]:
    """Return (local, remote) of every open TCP connection in the kernel's format: hexadecimal `ADDRESS:PORT`."""
    ends = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text(encoding="utf-8").splitlines()[1:]:
                _, local, remote, state, *_ = line.split()
                if state == _ESTABLISHED:
                    ends.add((_as_ipv4(local), _as_ipv4(remote)))
    return ends


def _as_ipv4(end: str) -> str:
    """Return an IPv4 address that is mapped into IPv6 as the plain IPv4 address."""
    return end.removeprefix("0000000000000000FFFF0000")
