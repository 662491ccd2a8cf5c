"""The sockets of this process: their end, their retransmissions, and the hosts that do not answer."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_TCP_RTO_MAX_MS = 44
"""Option for the longest time between two retransmissions, of Linux 6.15 and newer. Python has no name for it."""
_RETRANSMIT_EVERY_MS = 1000
"""The least value of that option. By default the time doubles up to two minutes, and so long a healed link stays unused."""
_GIVE_UP_MS = 900_000
"""Time without an acknowledgement after which a connection fails: about that of Linux's 15 retransmissions.

With the shorter interval, those would end it after a quarter of a minute.
"""
_TCP_INFO = struct.Struct("<8B24I")
_STATE, _RETRANSMITS, _UNACKED = 0, 2, 8 + 4
"""Indices in `struct tcp_info`: the state, retransmissions since the last acknowledgement, and segments without one."""
_ESTABLISHED, _SYN_SENT = 1, 2
_UNANSWERED_AFTER = 4
"""Retransmissions after which a host counts as unanswered: three seconds or more."""


def connections() -> frozenset[str]:
    """Return the sockets of this process, by the names that the kernel gives them."""
    return frozenset(name for _, name in _named_sockets())


def connected(names: frozenset[str]) -> frozenset[str]:
    """Return those of these sockets of this process that are TCP connections which neither end has closed."""
    found = set()
    for descriptor, name in _named_sockets():
        if name in names:
            with suppress(OSError), _copy_of(descriptor) as one:
                if _tcp_info(one)[_STATE] == _ESTABLISHED:
                    found.add(name)
    return frozenset(found)


def disconnect(names: frozenset[str], *, listening: bool = False) -> None:
    """Close the connections among these sockets, which ends the waits of gloo. `listening`: end waits for connections too."""
    for connection in _copies_of(names):
        with suppress(OSError):  # closed meanwhile, or not connected
            # Gloo needs its listening socket until its end.
            if listening or not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                connection.shutdown(socket.SHUT_RDWR)


def release(names: frozenset[str]) -> None:
    """Put the null device in the place of these sockets in a forked child, whose parent keeps them.

    A child that outlives its parent would otherwise keep the connections open, and the parent's peers would notice its end late.
    The descriptors stay taken, so that C++ code which closes them closes nothing else.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor, name in list(_named_sockets()):
        if name in names:
            with suppress(OSError):
                os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def has_unanswered_attempt(names: frozenset[str]) -> bool:
    """Return True if one of these sockets has asked for a connection twice without an answer, which takes a second.

    The system of a host answers for its processes, however busy they are.
    """
    for attempt in _copies_of(names):
        with suppress(OSError):
            info = _tcp_info(attempt)
            if info[_STATE] == _SYN_SENT and info[_RETRANSMITS]:
                return True
    return False


def retransmit_each_second() -> None:
    """Make the connections of this process retransmit at least every second. Older systems ignore it."""
    for connection in _tcp_connections():
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _RETRANSMIT_EVERY_MS)
            if not connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GIVE_UP_MS)


def unanswered_hosts() -> frozenset[str]:
    """Return the addresses of the hosts that have acknowledged nothing on a connection for some seconds."""
    found = set()
    for connection in _tcp_connections():
        with suppress(OSError):
            info = _tcp_info(connection)
            if info[_RETRANSMITS] >= _UNANSWERED_AFTER and info[_UNACKED]:
                found.add(connection.getpeername()[0].removeprefix("::ffff:"))
    return frozenset(found)


def _tcp_connections() -> Iterator[socket.socket]:
    """Yield a copy of each connected TCP socket of this process, and close it afterwards."""
    for one in _copies_of(None):
        if one.type == socket.SOCK_STREAM and one.family in {socket.AF_INET, socket.AF_INET6}:
            with suppress(OSError):
                one.getpeername()  # raises for a socket that is not connected
                yield one


def _copies_of(names: frozenset[str] | None) -> Iterator[socket.socket]:
    """Yield a copy of each of these sockets of this process (None: of all), and close it afterwards."""
    for descriptor, name in _named_sockets():
        if names is None or name in names:
            with suppress(OSError), _copy_of(descriptor) as one:  # closed meanwhile
                yield one


def _named_sockets() -> Iterator[tuple[int, str]]:
    """Yield the descriptors of this process's sockets, with the names that the kernel gives them."""
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208  # descriptors, not files
        with suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
            if name.startswith("socket:"):
                yield int(descriptor), name


def _tcp_info(connection: socket.socket) -> tuple[int, ...]:
    """Return the kernel's numbers about a TCP socket. Raises OSError for others."""
    return _TCP_INFO.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))


@contextmanager
def _copy_of(descriptor: int) -> Iterator[socket.socket]:
    """Yield a socket object of a copy of the descriptor, and close it. Raises OSError if it is no socket."""
    copy = os.dup(descriptor)
    try:
        one = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with one:
        yield one
