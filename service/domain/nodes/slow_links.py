"""Hosts whose link is slow by measurement, from the bandwidths between pairs of hosts. Pure.

A host sends slowly if each of its measured peers has received from another host at several times the rate at which it
receives from this one; likewise for receiving. A slow peer therefore accuses nobody, nor does one bad pair. Only hosts of
one kind are compared, because hosts of another may well have other links.

A host that was busy for a moment sends slowly, too. The first such finding is therefore a doubt, and has all pairs of the
host measured again. Only later measurements confirm it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

SLOW_SHARE = 0.25
"""Share of the usual rate below which a link is slow."""
WELL_SHARE = 0.5
"""Share of the usual rate from which a link that was slow no longer is, so that a mark does not come and go."""
LEAST_PEERS = 2
"""Number of peers that must have seen the same."""


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Bandwidth in bytes per second from one node to another, as measured."""

    sender: str
    receiver: str
    bytes_per_s: float
    measured_at: datetime


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A slow link of a host: the best rate of all its peers, and the usual one, which these reach with others."""

    bytes_per_s: float
    usual_bytes_per_s: float
    sends: bool
    """True if the host sends slowly, False if it receives slowly."""

    def sentence(self, name: str) -> str:
        """Return what was measured of the host of this name, in Mbit/s."""
        verb = "sends" if self.sends else "receives"
        return f"{name} {verb} at {_mbit(self.bytes_per_s)} Mbit/s, its peers do at {_mbit(self.usual_bytes_per_s)} with others"


@dataclass(frozen=True, slots=True)
class LinkFindings:
    """Hosts whose link is slow, and those for which only later measurements will tell."""

    slow: Mapping[str, SlowLink]
    doubted: frozenset[str]


def judged(
    rates: Sequence[LinkRate],
    kinds: Mapping[str, str],
    marked: Collection[str],
    doubted: Mapping[str, datetime],
) -> LinkFindings:
    """Return what the latest rates say of hosts with the kinds `kinds`, of which some are `marked` as slow.

    `doubted` hosts were found slow at these times. Measurements after that confirm it.
    """
    found = slow_links(rates, kinds, marked)
    slow = {host: link for host, link in found.items() if host in marked}
    suspects = found.keys() - slow.keys()
    if awaited := {host: doubted[host] for host in suspects if host in doubted}:
        later = [
            one
            for one in rates
            if all(one.measured_at > awaited[end] for end in (one.sender, one.receiver) if end in awaited)
        ]
        slow |= {host: link for host, link in slow_links(later, kinds).items() if host in awaited}
    return LinkFindings(slow, frozenset(suspects - slow.keys()))


def slow_links(
    rates: Iterable[LinkRate], kinds: Mapping[str, str], marked: Collection[str] = ()
) -> dict[str, SlowLink]:
    """Return the hosts with a slow link. `kinds` has the kind of each node; others are left out.

    `marked` hosts were slow before, and stay so until they reach `WELL_SHARE` of the usual rate.
    """
    known = [
        one
        for one in rates
        if one.bytes_per_s > 0 and one.sender in kinds and kinds[one.sender] == kinds.get(one.receiver)
    ]
    found: dict[str, SlowLink] = {}
    for sends in (True, False):
        by_peer: defaultdict[str, dict[str, float]] = defaultdict(dict)
        by_host: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for one in known:
            host, peer = (one.sender, one.receiver) if sends else (one.receiver, one.sender)
            by_host[host][peer] = by_peer[peer][host] = one.bytes_per_s
        best = {peer: _best_two(own) for peer, own in by_peer.items()}
        for host, own in by_host.items():
            usual = {peer: best[peer][best[peer][0][1] == host][0] for peer in own}
            # A peer of no other host says nothing.
            compared = {peer: rate for peer, rate in usual.items() if rate > 0}
            share = WELL_SHARE if host in marked else SLOW_SHARE
            if len(compared) < LEAST_PEERS or any(own[peer] >= share * compared[peer] for peer in compared):
                continue
            slow = SlowLink(max(own[peer] for peer in compared), median(compared.values()), sends)
            if host not in found or slow.bytes_per_s < found[host].bytes_per_s:
                found[host] = slow
    return found


def _best_two(rates: Mapping[str, float]) -> tuple[tuple[float, str], tuple[float, str]]:
    """Return the two highest rates with their hosts; 0 and an empty name where there is none."""
    ordered = sorted(((rate, host) for host, rate in rates.items()), reverse=True)
    first, second, *_ = (*ordered, (0.0, ""), (0.0, ""))
    return first, second


def _mbit(bytes_per_s: float) -> str:
    return f"{8e-6 * bytes_per_s:,.3g}" if bytes_per_s < 1.25e7 else f"{8e-6 * bytes_per_s:,.0f}"
