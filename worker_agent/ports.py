"""A block of ports of this host that jobs may use for their rendezvous."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass

from headway.errors import HeadwayError

BLOCK = 64
_FIRST, _LAST = 20000, 31999


@dataclass(frozen=True, slots=True)
class Ports:
    """First and last port, inclusive."""

    first: int
    last: int


def claim(ports: Ports) -> socket.socket | None:
    """Claim the block against other agents of this host while the returned socket is open.

    None when another agent has it. The claim is a name in the abstract socket namespace, which has the
    scope of the ports themselves (a network namespace) and ends with its holder.
    """
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0headway-ports-{ports.first}")
    except OSError:
        holder.close()
        return None
    return holder


def choose(rng: random.Random) -> tuple[Ports, socket.socket]:
    """A block whose ports are all free now, and the claim on it.

    Raises:
        HeadwayError: there is none.
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
        f"No {BLOCK} free ports in a row between {_FIRST} and {_LAST}.", "Name some with --ports FIRST-LAST."
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
