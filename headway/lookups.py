"""Addresses without names: torch looks up the name of each end of its stores' connections, only to write it in a log.

The answer can take ten seconds, or never come, where the name server is busy or out of reach. A store serves all its clients by
one thread, so that each of them waits. Only systems whose `hosts` line in nsswitch.conf names `dns` are mended, as most do.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_INITIALIZED = 1
"""Flag `RES_INIT` of resolv.h."""


class ResolverState(ctypes.Structure):
    """The beginning of `struct __res_state` in resolv.h, the settings of a thread's resolver."""

    _fields_ = (
        ("retrans", ctypes.c_int),
        ("retry", ctypes.c_int),
        ("options", ctypes.c_ulong),
        ("nscount", ctypes.c_int),
    )


@contextmanager
def no_name_servers() -> Iterator[None]:
    """Have this thread ask no name server during the block: the names of hosts are those of /etc/hosts.

    Other threads are unchanged. Nothing happens on a system without glibc.
    """
    state = resolver_state()
    if state is None:
        yield
        return
    before = state.nscount
    state.nscount = 0
    try:
        yield
    finally:
        state.nscount = before


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
