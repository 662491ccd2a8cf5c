"""Connections between hosts: the probes that agents are asked for, their results, and failures that jobs met."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from headway.contract.links import (
    MAX_PROBE_BYTES,
    SMALL_PROBE_BYTES,
    LinkProbe,
    LinksProbed,
    PeerProbe,
    probe_token,
)
from headway.contract.runtime import Progress
from headway.contract.views.hosts import HostsView
from service.domain.jobs.records import AllocationRecord
from service.domain.nodes.link_findings import checks_of, medians_of, slowness_of
from service.domain.nodes.links import (
    DueProbe,
    Link,
    ProbeHost,
    after_probe,
    apart_of,
    due_probes,
    sampled_pairs,
    stale_at,
)
from service.domain.nodes.slow_links import LinkRate, judged
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.links import LinkRecord, ProbeTarget
from service.usecases.ports.nodes import NodeRecord
from service.usecases.ports.transactions import Transaction, Transactions

log = structlog.get_logger()

_KEEP = timedelta(days=1)
"""Time after which a connection that nobody probes any more is forgotten."""
_FORGET_EVERY = timedelta(hours=1)


class ProbePlan:
    """The probes that this process asks agents for in its answers to their reports.

    Every process computes the same plan from the same rows. An agent that is asked twice probes once.
    """

    def __init__(self, transactions: Transactions, now: Callable[[], datetime]) -> None:
        self._transactions = transactions
        self._now = now
        self._orders: Mapping[str, Sequence[PeerProbe]] = {}
        self._sample: tuple[tuple[str, ...], frozenset[tuple[str, str]]] = ((), frozenset())
        self._forget_at: datetime | None = None

    def of(self, node_id: str) -> list[PeerProbe]:
        """Return the probes that the node is asked for now."""
        return list(self._orders.get(node_id, ()))

    async def refresh(self) -> None:
        """Plan anew from what is known now.

        Raises:
            Unavailable: the database does not answer.
        """
        now = self._now()
        async with self._transactions.begin() as tx:
            targets = {one.id: one for one in await tx.links.targets()}
            links = {(one.source, one.target): one for one in await tx.links.all()} if targets else {}
            if self._forget_at is None or now >= self._forget_at:
                await tx.links.forget_before(now - _KEEP)
                self._forget_at = now + _FORGET_EVERY
        ids = tuple(sorted(targets))
        if ids != self._sample[0]:
            # Thousands of nodes take a while, and reports must not wait for it.
            self._sample = ids, await asyncio.to_thread(sampled_pairs, ids)
        targets = await self._marked(targets, links.values(), now)
        stale = {}
        for one in targets.values():
            moment = stale_at(
                now, slow=bool(one.slow_link), suspected_at=one.suspected_at, doubted_at=one.doubted_at
            )
            if moment is not None:
                stale[one.id] = moment
        hosts = {
            one.id: ProbeHost(one.id, one.address, one.probe_port is not None) for one in targets.values()
        }
        orders: defaultdict[str, list[PeerProbe]] = defaultdict(list)
        for due in due_probes(hosts, self._sample[1], links, now, stale):
            orders[due.source].append(_order(due, targets[due.target], now))
        self._orders = orders

    async def _marked(
        self, targets: dict[str, ProbeTarget], links: Iterable[Link], now: datetime
    ) -> dict[str, ProbeTarget]:
        """Store which hosts have a slow link, and which are in doubt, if that has changed, and return the hosts.

        The next round heeds the marks.
        """
        rates = [
            LinkRate(one.target, one.source, one.bytes_per_s, one.transferred_at)
            for one in links
            if one.bytes_per_s and one.transferred_at is not None and not one.failure
        ]
        found = judged(
            rates,
            {one.id: one.kinds for one in targets.values()},
            {one.id for one in targets.values() if one.slow_link},
            {one.id: one.doubted_at for one in targets.values() if one.doubted_at is not None},
        )
        changed = {}
        for one in targets.values():
            slow, doubted = one.id in found.slow, one.id in found.doubted
            if slow != bool(one.slow_link) or doubted != (one.doubted_at is not None):
                sentence = found.slow[one.id].sentence(one.name) if slow else ""
                changed[one.id] = replace(one, slow_link=sentence, doubted_at=now if doubted else None)
        if not changed:
            return targets
        async with self._transactions.begin() as tx:
            await tx.links.save_slow(list(changed.values()))
        relabelled = [one for one in changed.values() if one.slow_link != targets[one.id].slow_link]
        if relabelled:
            async with self._transactions.begin() as tx:
                # Apart from the marks: reports lock hosts and allocations in either order.
                await tx.links.relabel([one.id for one in relabelled])
                tx.wake(WakeUp.ROUND)
        for one in relabelled:
            log.warning(
                "link_slow" if one.slow_link else "link_well_again", node=one.name, found=one.slow_link
            )
        return targets | changed


def _order(due: DueProbe, target: ProbeTarget, now: datetime) -> PeerProbe:
    assert target.probe_port is not None, "only nodes that listen are probed"
    nonce = int(now.timestamp() * 1000)
    size = MAX_PROBE_BYTES if due.measures else SMALL_PROBE_BYTES
    return PeerProbe(
        peer=target.id,
        address=target.address,
        port=target.probe_port,
        nonce=nonce,
        size_bytes=size,
        token=probe_token(target.probe_key, due.source, nonce, size),
    )


async def ingest_probes(
    tx: Transaction, node: NodeRecord, entries: Sequence[LinksProbed], now: datetime
) -> None:
    """Store the results of a node's probes. The next round heeds them."""
    found = {pair.peer: pair for entry in entries for pair in entry.pairs if pair.peer != node.id}
    before = {link.target: link for link in await tx.links.of_source(node.id)}
    records, changed = [], False
    for peer, pair in found.items():
        known = before.get(peer)
        failure = after_probe(known, pair.failure, now)
        records.append(_record(node.id, pair, failure, now))
        failed_before = known is not None and bool(known.failure)
        if bool(failure) != failed_before:
            changed = True
            log.warning(
                "link_failed" if failure else "link_works_again", node=node.name, failure=failure or None
            )
    await tx.links.save(records)
    if entries[-1].clock_ahead_s is not None:
        await tx.links.save_clock(node.id, entries[-1].clock_ahead_s)
    if changed:
        tx.wake(WakeUp.ROUND)


async def note_slower_sync(
    tx: Transaction, allocation: AllocationRecord, message: Progress, now: datetime
) -> None:
    """Have the links of a job's nodes measured if its ranks wait longer for one another than they did."""
    if message.sync_times > 0.0 and len(allocation.slots) > 1:
        await tx.links.suspect(sorted(allocation.slots), now)


def _record(source: str, pair: LinkProbe, failure: str, now: datetime) -> LinkRecord:
    return LinkRecord(
        source_id=source,
        target_id=pair.peer,
        address=pair.address,
        port=pair.port,
        failure=failure,
        since=now,
        probed_at=now,
        transferred_at=None if pair.bytes_per_s is None else now,
        connect_s=pair.connect_s,
        bytes_per_s=pair.bytes_per_s,
    )


async def hosts_view(tx: Transaction, now: datetime) -> HostsView:
    """Return the hosts, the connections that fail or are slow, and what to do about them."""
    hosts, links = await tx.links.hosts(), await tx.links.views()
    apart = apart_of(await tx.links.concerning_failures(), now)
    latency_s, bytes_per_s = medians_of(links)
    compared = [
        link.model_copy(update={"slow": "" if link.failure else slowness_of(link, latency_s, bytes_per_s)})
        for link in links
    ]
    return HostsView(
        hosts=hosts,
        links=[link for link in compared if link.failure or link.slow],
        links_probed=len(links),
        latency_s=latency_s,
        bytes_per_s=bytes_per_s,
        checks=checks_of(hosts, links, apart.alone),
    )
