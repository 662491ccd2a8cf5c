"""Connections between hosts: which pairs are probed, and which of them keep a job from spanning two nodes.

In a small cluster all pairs are probed. In a larger one, each node is probed with at least `PEERS` others. The sample is
chosen by rendezvous hashing of the pair, so that it changes little when a node joins or leaves, and every slow or cut-off
host shows against several peers.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from service.domain.cluster.apart import Apart

ALL_PAIRS_UP_TO = 16
"""Largest number of nodes among which all pairs are probed."""
PEERS = 8
"""Minimum number of peers of a node in a larger cluster."""
AGAIN_S = 600.0
"""Seconds between two probes of a pair that can talk."""
TROUBLED_AGAIN_S = 60.0
"""Seconds between two probes of a pair that can talk, while another connection of one of them fails."""
FAILED_AGAIN_S = 10.0
"""Seconds after which a pair that cannot talk is probed again, so that it heals soon."""
TRANSFER_AGAIN_S = 3600.0
"""Seconds between two measurements of a pair's bandwidth."""
SLOW_AGAIN_S = 120.0
"""Seconds between two measurements of a slow link, so that one that is well again is soon used."""
PROBES_AT_ONCE = 16
"""Maximum number of probes that a node is asked for at once, and that others make of it."""
BELIEVED_S = 300.0
"""Seconds after which a failure that nobody confirmed no longer counts."""
JOB_BELIEVED_S = 60.0
"""Seconds for which a failure that a job met outweighs a later probe.

Jobs use other ports than the probe, and a firewall may let only the latter through.
"""
ALONE_FROM = 2
"""Number of peers that must have failed before a node counts as cut off from all others."""


@dataclass(frozen=True, slots=True)
class ProbeHost:
    """A node whose agent makes probes. It answers them if `listens`."""

    id: str
    address: str
    listens: bool


@dataclass(frozen=True, slots=True)
class Link:
    """Knowledge of the direction from `source` to `target`. `failure` is empty if the target was reached."""

    source: str
    target: str
    failure: str
    probed_at: datetime
    transferred_at: datetime | None = None
    job_at: datetime | None = None
    """Time at which a job last met the failure; None if none did."""
    bytes_per_s: float | None = None
    """Last rate from the target to the source, measured at `transferred_at`."""

    def failing(self, now: datetime) -> bool:
        """Return True if the failure counts now."""
        return bool(self.failure) and (now - self.probed_at).total_seconds() < BELIEVED_S


@dataclass(frozen=True, slots=True)
class DueProbe:
    """A probe to ask `source` for; `measures` bandwidth as well."""

    source: str
    target: str
    measures: bool


def sampled_pairs(ids: Sequence[str], *, peers: int = PEERS) -> frozenset[tuple[str, str]]:
    """Return the pairs of nodes to probe, each in ascending order.

    Every node is in at least `peers` pairs if there are so many others, and there are at most `peers` pairs per node.
    """
    ordered = sorted(set(ids))
    if len(ordered) <= max(ALL_PAIRS_UP_TO, peers + 1):
        return frozenset((one, other) for at, one in enumerate(ordered) for other in ordered[at + 1 :])
    keys = np.array(
        [int.from_bytes(hashlib.blake2b(one.encode(), digest_size=8).digest()) for one in ordered],
        dtype=np.uint64,
    )
    pairs: set[tuple[str, str]] = set()
    for at, key in enumerate(keys):
        scores = _mixed(keys ^ key)
        scores[at] = np.iinfo(np.uint64).max
        pairs |= {
            (ordered[min(at, int(peer))], ordered[max(at, int(peer))])
            for peer in np.argpartition(scores, peers)[:peers]
        }
    return frozenset(pairs)


def _mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each key: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed: NDArray[np.uint64] = keys.copy()
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def due_probes(
    hosts: Mapping[str, ProbeHost],
    pairs: Iterable[tuple[str, str]],
    links: Mapping[tuple[str, str], Link],
    now: datetime,
    stale_before: Mapping[str, datetime] = MappingProxyType({}),
) -> list[DueProbe]:
    """Return the probes that are due: pairs never probed, then failing ones, then those probed longest ago.

    Both directions of `pairs` are probed, and every failing link. A node makes, and answers, at most
    `PROBES_AT_ONCE`, and takes part in at most one measurement of bandwidth, so that none disturbs another.

    Measurements of the nodes in `stale_before` up to these moments are made anew.
    """
    wanted = {one for pair in pairs for one in (pair, pair[::-1])} | {
        key for key, link in links.items() if link.failure
    }
    troubled = {node for (source, target), link in links.items() if link.failure for node in (source, target)}
    due = []
    for source, target in wanted:
        if source not in hosts or target not in hosts or not hosts[target].listens:
            continue
        if hosts[source].address == hosts[target].address:
            continue
        again_s = TROUBLED_AGAIN_S if source in troubled or target in troubled else AGAIN_S
        stale = max((stale_before[one] for one in (source, target) if one in stale_before), default=None)
        urgency = _urgency(links.get((source, target)), now, again_s, stale)
        if urgency is not None:
            due.append((urgency, source, target))
    made: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    measuring: set[str] = set()
    chosen = []
    for (kind, _), source, target in sorted(due):
        measures = kind == _MEASURE
        ends = {source, target}
        if (
            made[source] >= PROBES_AT_ONCE
            or answered[target] >= PROBES_AT_ONCE
            or (measures and ends & measuring)
        ):
            continue
        made[source] += 1
        answered[target] += 1
        measuring |= ends if measures else set()
        chosen.append(DueProbe(source, target, measures))
    return chosen


_NEW, _FAILED, _OLD, _MEASURE = range(4)


def _urgency(
    link: Link | None, now: datetime, again_s: float, stale: datetime | None
) -> tuple[int, float] | None:
    """Return the sort key of a link's probe; None if none is due."""
    if link is None:
        return _NEW, 0.0
    age_s = abs((now - link.probed_at).total_seconds())
    if link.failure:
        return (_FAILED, -age_s) if age_s >= FAILED_AGAIN_S else None
    if age_s >= again_s:
        return _OLD, -age_s
    if link.transferred_at is None:
        return _MEASURE, float("-inf")
    measured_s = abs((now - link.transferred_at).total_seconds())
    again = measured_s >= TRANSFER_AGAIN_S or (stale is not None and link.transferred_at <= stale)
    return (_MEASURE, -measured_s) if again else None


def stale_at(
    now: datetime, *, slow: bool, suspected_at: datetime | None, doubted_at: datetime | None
) -> datetime | None:
    """Return the moment up to which measurements of a node are too old; None if none is.

    `slow` says that its link is marked. A job suspected it at `suspected_at`, and its own rates made it doubted at `doubted_at`.
    """
    marked = now - timedelta(seconds=SLOW_AGAIN_S) if slow else None
    return max((one for one in (marked, suspected_at, doubted_at) if one is not None), default=None)


def after_probe(before: Link | None, failure: str, now: datetime) -> str:
    """Return the failure of a link after a probe; a failure that a job has just met outweighs a success."""
    if failure or before is None or before.job_at is None:
        return failure
    return before.failure if (now - before.job_at).total_seconds() < JOB_BELIEVED_S else ""


def apart_of(links: Iterable[Link], now: datetime) -> Apart:
    """Return the pairs and nodes that failing links keep apart.

    A node that all of at least `ALONE_FROM` peers cannot reach, or that can reach none of them, is cut off from every
    node: it is behind NAT, or a firewall closes its ports. `links` must be those from and to each node of a failing one.
    """
    known = list(links)
    failing = [link for link in known if link.failing(now)]
    if not failing:
        return Apart()
    pairs: dict[frozenset[str], str] = {}
    for link in sorted(failing, key=lambda one: (one.source, one.target)):
        pairs.setdefault(frozenset((link.source, link.target)), link.failure)
    return Apart(pairs, {**_cut_off(known, now, outwards=True), **_cut_off(known, now, outwards=False)})


def _cut_off(links: Iterable[Link], now: datetime, *, outwards: bool) -> dict[str, str]:
    by_node: defaultdict[str, list[Link]] = defaultdict(list)
    for link in links:
        by_node[link.source if outwards else link.target].append(link)
    return {
        node: min(link.failure for link in own)
        for node, own in by_node.items()
        if len(own) >= ALONE_FROM and all(link.failing(now) for link in own)
    }
