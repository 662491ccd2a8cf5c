"""Allocation of a block of ports of this host for the rendezvous of jobs."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass

from headway.errors import HeadwayError

BLOCK = 64
_FIRST, _LAST = 20000, 31999


@dataclass(frozen=True, slots=True)
class Ports:
    """Block of ports, given by its first and last port, inclusive."""

    first: int
    last: int


def claim(ports: Ports) -> socket.socket | None:
    """Claim the block against other agents of this host while the returned socket is open.

    Return None if another agent holds the claim. The claim is a name in the abstract socket namespace. It has
    the scope of the ports themselves (a network namespace) and ends with the process that holds it.
    """
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0headway-ports-{ports.first}")
    except OSError:
        holder.close()
        return None
    return holder


def choose(rng: random.Random) -> tuple[Ports, socket.socket]:
    """Return a block whose ports are all free now, and the claim on it.

    Raises:
        HeadwayError: no block is free.
    """
    firsts = list(range(_FIRST, _LAST - BLOCK + 2, BLOCK))
    rng.shuffle(firsts)
    for first in firsts:
        ports = Ports(first, first + BLOCK - 1)
        if not all(_is_free(port) for port in range(ports.first, ports.last + 1)):
            continue
        holder = claim(ports)
        if holder is not None:
            return ports, holder
    raise HeadwayError(
        f"No {BLOCK} consecutive free ports between {_FIRST} and {_LAST}.",
        "Choose a range with --ports FIRST-LAST.",
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
