"""Hosts that a rank of a job could not reach: their names for people, and the note by which placement avoids the pair."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from headway.contract.runtime import CANNOT_REACH
from service.domain.life.effects import NoteUnreachable
from service.domain.life.life import HostFacts, Life

_ADDRESS = re.compile(rf"(?<=\b{CANNOT_REACH} )(?P<host>\S+):(?P<port>\d+)(?=: (?P<why>.*))")


@dataclass(frozen=True, slots=True)
class UnreachedServer:
    """A server that a rank could not connect to. `refused`: its host answered that nothing listens there."""

    address: str
    port: int
    refused: bool


def unreached_in(error: str) -> UnreachedServer | None:
    """Return the server that a rank's error names; None if it names none."""
    found = _ADDRESS.search(error)
    if found is None:
        return None
    return UnreachedServer(found["host"].strip("[]"), int(found["port"]), "refused" in found["why"].lower())


def with_host_names(error: str, names: Mapping[str, str]) -> str:
    """Return a rank's error with the names of the hosts that it could not reach, beside their addresses.

    `names` has the name of each node by its address.
    """

    def named(found: re.Match[str]) -> str:
        address = found["host"].strip("[]")
        name = names.get(address)
        return found[0] if name is None else f"{name}:{found['port']} ({address})"

    return _ADDRESS.sub(named, error)


def note_unreached(life: Life, node_id: str, error: str) -> tuple[Life, str]:
    """Return the life after an error of a rank on the node that may name a host, and the error with that host's name.

    A connection that was refused is no reason to keep the hosts apart: the host answers, but the process there has ended.
    """
    by_address = _by_address(life.loaded_footprint.hosts)
    named = with_host_names(error, {address: host.name for address, host in by_address.items()})
    found = unreached_in(error)
    target = None if found is None else by_address.get(found.address)
    if found is None or target is None or target.id == node_id or found.refused:
        return life, named
    note = NoteUnreachable(node_id, target.id, found.address, found.port, named)
    return life.having(note), named


def _by_address(hosts: Mapping[str, HostFacts]) -> dict[str, HostFacts]:
    """Return the nodes by their addresses, without those that share one."""
    count = Counter(host.address for host in hosts.values())
    return {host.address: host for host in hosts.values() if count[host.address] == 1}
