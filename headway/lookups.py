"""Addresses without names: torch looks up the name of each end of its stores' connections, only to write it in a log.

The answer can take ten seconds, or never come, where the name server is busy or out of reach. A store serves all its clients by
one thread, so that each of them waits. Only systems whose `hosts` line in nsswitch.conf names `dns` are mended, as most do.
"""

from __future__ import annotations

import ctypes
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_INITIALIZED = 1
"""Flag `RES_INIT` of resolv.h."""
_NO_SUCH_NAME = b"\x81\x83"
"""Flags of an answer in the header of a DNS message (RFC 1035, 4.1.1): QR, RD, RA, and the code 3."""
_QUERY_BYTES = 512
_ID_BYTES, _FLAGS_BYTES = 2, 2


class ResolverState(ctypes.Structure):
    """The beginning of `struct __res_state` in resolv.h, the settings of a thread's resolver."""

    _fields_ = (
        ("retrans", ctypes.c_int),
        ("retry", ctypes.c_int),
        ("options", ctypes.c_ulong),
        ("nscount", ctypes.c_int),
        ("first_server", ctypes.c_uint8 * 16),  # a `struct sockaddr_in`
    )


@contextmanager
def no_name_servers() -> Iterator[None]:
    """Have this thread ask no name server of the network during the block: the names of hosts are those of /etc/hosts.

    Other threads are unchanged. Nothing happens on a system without glibc. A thread of this process answers that there is no
    such name. Without any server the resolver fails with EAI_AGAIN, and torch warns of each failure in the log of the job.
    """
    state = resolver_state()
    if state is None:
        yield
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        answering = threading.Thread(
            target=_deny_all_names, args=[server], name="answers of no name server", daemon=True
        )
        answering.start()
        try:
            with asking(state, server.getsockname()[1]):
                yield
        finally:
            server.sendto(b"", server.getsockname())
            answering.join()


@contextmanager
def asking(state: ResolverState, port: int) -> Iterator[None]:
    """Have the resolver of this state ask only the name server at the UDP port of 127.0.0.1 during the block."""
    before_count, before = state.nscount, bytes(state.first_server)
    family = int(socket.AF_INET).to_bytes(2, sys.byteorder)
    address = family + port.to_bytes(2, "big") + socket.inet_aton("127.0.0.1") + bytes(8)
    state.nscount, state.first_server[:] = 1, address
    try:
        yield
    finally:
        state.nscount, state.first_server[:] = before_count, before


def _deny_all_names(server: socket.socket) -> None:
    """Answer each query that its name does not exist, until an empty message comes."""
    while True:
        query, sender = server.recvfrom(_QUERY_BYTES)
        if not query:
            return
        server.sendto(query[:_ID_BYTES] + _NO_SUCH_NAME + query[_ID_BYTES + _FLAGS_BYTES :], sender)


def ask_no_name_servers() -> None:
    """Have no thread of this process ask a name server from now on: for a process that only keeps a store."""
    configure = (
        getattr(ctypes.CDLL(None), "__nss_configure_lookup", None) if sys.platform == "linux" else None
    )
    if configure is not None:
        configure(b"hosts", b"files")


def resolver_state() -> ResolverState | None:
    """Return the settings of this thread's resolver, which take effect at its next look-up; None without glibc."""
    library = ctypes.CDLL(None)
    find, begin = getattr(library, "__res_state", None), getattr(library, "__res_init", None)
    if sys.platform != "linux" or find is None or begin is None:
        return None
    find.restype = ctypes.POINTER(ResolverState)
    state: ResolverState = find().contents
    if not state.options & _INITIALIZED:
        begin()
    return state
