"""The page of the cluster: its slots, their holders, problems, and waiting jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.contract.agents import NodeState
from headway.contract.values.markets import pool_name
from headway.contract.values.text import brief
from headway.contract.views.decisions import ClusterView, KindView, RoundView
from headway.contract.views.jobs import JobState, JobView
from headway.contract.views.nodes import NodeView, SlotView
from service.console.html.badges import cell_of, tone_of_job, tone_of_node
from service.console.html.fragments import Content, Fact, Fragment, Listing
from service.console.html.palette import mark_of, tint_of
from service.console.html.text import NONE, duration, listed, plural, quality_words, short, usd
from service.console.pages.jobs import end_of

_SHOWN = 12
"""Maximum number of jobs in a list of this page. The page of jobs has all of them."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A node of the overview. `cells` are the style classes of its slots, `marks` the letters in them, and `label`
    describes them in words.
    """

    id: str
    name: str
    state: str
    tone: str
    cells: tuple[str, ...]
    marks: tuple[str, ...]
    holders: tuple[str, ...]
    label: str
    pool: str
    price: str


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A row of the table of slots by kind."""

    name: str
    slots: int
    held: int
    free: int
    away: int
    price: str


@dataclass(frozen=True, slots=True)
class Worker:
    """A job that holds slots or waits for them."""

    id: str
    name: str
    hue: str
    tone: str
    state: str
    size: str
    message: str
    notes: tuple[str, ...]
    share: float | None


@dataclass(frozen=True, slots=True)
class ClusterPage:
    """All contents of the page."""

    headline: str
    figures: tuple[Fact, ...]
    pools: tuple[PoolRow, ...]
    tiles: tuple[Tile, ...]
    working: tuple[Worker, ...]
    waiting: tuple[Worker, ...]
    more: int
    """Number of jobs that hold slots or wait and are not listed."""

    def contents(self) -> list[Content]:
        """Return the fragments of the page."""
        return [
            Fragment("headline", "headline", self.headline),
            Fragment("figures", "facts", ("figures", self.figures)),
            Fragment("pools", "pools", self.pools),
            Fragment("waiting", "workers", ("waiting", self.waiting)),
            Fragment("working", "workers", ("working", self.working)),
            Fragment("more", "more_jobs", self.more),
            Fragment("no-nodes", "no_nodes", not self.tiles),
            Listing("tiles", tuple(Fragment(f"node-{tile.id}", "tile", tile) for tile in self.tiles)),
        ]


def cluster_page(
    cluster: ClusterView,
    nodes: Sequence[NodeView],
    jobs: Sequence[JobView],
    latest: RoundView | None,
    prices: Mapping[str, float],
    colours: Mapping[str, int],
) -> ClusterPage:
    """Return the page of the cluster.

    Args:
        cluster: counts of slots, nodes and jobs.
        nodes: every node, with the holders of its slots.
        jobs: jobs that have not ended.
        latest: latest round, if there was one.
        prices: price of a slot in dollars per hour, by device kind.
        colours: colours of jobs, by id.
    """
    waiting = [one for one in jobs if one.size == 0]
    working = [one for one in jobs if one.size > 0]
    return ClusterPage(
        headline=_headline(cluster),
        figures=_figures(cluster, nodes, latest),
        pools=tuple(_pool(one) for one in cluster.kinds),
        tiles=tuple(_tile(one, prices, colours) for one in nodes),
        working=tuple(_worker(one, colours) for one in working[:_SHOWN]),
        waiting=tuple(_worker(one, colours) for one in waiting[:_SHOWN]),
        more=max(0, len(waiting) - _SHOWN) + max(0, len(working) - _SHOWN),
    )


def _headline(cluster: ClusterView) -> str:
    slots, held = _slots(cluster)
    waiting = cluster.jobs.get(JobState.PENDING, 0)
    if not slots:
        return "No host has joined yet."
    waits = f" {plural(waiting, 'job is', 'jobs are')} pending." if waiting else " No job is pending."
    return f"{held:,} of {plural(slots, 'slot')} {'is' if held == 1 else 'are'} at work.{waits}"


def _slots(cluster: ClusterView) -> tuple[int, int]:
    return sum(one.slots for one in cluster.kinds), sum(one.held for one in cluster.kinds)


def _figures(cluster: ClusterView, nodes: Sequence[NodeView], latest: RoundView | None) -> tuple[Fact, ...]:
    slots, held = _slots(cluster)
    free = sum(one.free for one in cluster.kinds)
    live = sum(cluster.jobs.values())
    running = sum(cluster.jobs.get(state, 0) for state in (JobState.RUNNING, JobState.RESIZING))
    ready = cluster.nodes.get(NodeState.READY, 0)
    ill = sum(1 for node in nodes for slot in node.slots if slot.quarantine is not None)
    lost = cluster.nodes.get(NodeState.LOST, 0)
    health = [plural(ill, "slot") + " in quarantine"] if ill else []
    others = [
        f"{count} {state.lower()}" for state, count in cluster.nodes.items() if state != NodeState.READY
    ]
    waiting = cluster.jobs.get(JobState.PENDING, 0)
    return (
        Fact("Slots at work", f"{held:,} of {slots:,}", f"{free:,} free", held / slots if slots else None),
        Fact("Jobs", f"{running:,} running", f"{plural(live, 'job')} in all, {waiting:,} pending"),
        *_spending(cluster),
        Fact(
            "Nodes",
            f"{ready:,} ready",
            listed([*others, *health]) if others or health else "all are well",
            tone="bad" if lost or ill else "",
        ),
        Fact("Decisions", cluster.policy, _quality(latest)),
    )


def _spending(cluster: ClusterView) -> tuple[Fact, ...]:
    """Return the fact about the spending; none where no slot has a price."""
    if not cluster.usd_per_h and not any(one.usd_per_slot_h for one in cluster.kinds):
        return ()
    return (Fact("Spending", f"{usd(cluster.usd_per_h)} an hour", "what the slots at work cost"),)


def _quality(latest: RoundView | None) -> str:
    if latest is None:
        return "no round yet; check that a scheduler is running"
    return f"last round: {quality_words(latest.gap)}"


def _pool(one: KindView) -> PoolRow:
    return PoolRow(
        name=pool_name(one.device_kind, one.market),
        slots=one.slots,
        held=one.held,
        free=one.free,
        away=one.slots - one.in_service,
        price=f"{usd(one.usd_per_slot_h)}" if one.usd_per_slot_h else NONE,
    )


def _tile(node: NodeView, prices: Mapping[str, float], colours: Mapping[str, int]) -> Tile:
    kinds = sorted({slot.device_kind for slot in node.slots})
    pool = listed(pool_name(kind, node.market) for kind in kinds) if kinds else "no slots"
    paid = node.usd_per_slot_h
    per_slot = [prices.get(slot.device_kind, 0.0) if paid is None else paid for slot in node.slots]
    return Tile(
        id=node.id,
        name=node.name,
        state=node.state.lower(),
        tone=tone_of_node(node.state),
        cells=tuple(cell_of(slot, colours) for slot in node.slots),
        marks=tuple(mark_of(slot.job_name or "") if slot.job_id else "" for slot in node.slots),
        holders=tuple(_holder(slot) for slot in node.slots),
        label=words_of_slots(node.slots),
        pool=pool,
        price=f"{usd(sum(per_slot))}/h" if sum(per_slot) else "",
    )


def _holder(slot: SlotView) -> str:
    held = slot.job_name or "free"
    return f"{held}, in quarantine" if slot.quarantine is not None else held


def words_of_slots(slots: Sequence[SlotView]) -> str:
    """Return the use of slots, such as `3 of 4 slots: 2 train, 1 vision; 1 in quarantine`."""
    held = Counter(slot.job_name for slot in slots if slot.job_name)
    ill = sum(slot.quarantine is not None for slot in slots)
    if not slots:
        return "no slots"
    text = f"{held.total()} of {plural(len(slots), 'slot')} at work"
    if held:
        text += ": " + listed(f"{count} for {name}" for name, count in held.most_common())
    return text + (f"; {ill} in quarantine" if ill else "")


def _worker(job: JobView, colours: Mapping[str, int]) -> Worker:
    done = job.progress
    return Worker(
        id=job.id,
        name=job.name,
        hue=tint_of(colours, job.id, held=job.size > 0 or job.started_at is not None),
        tone=tone_of_job(job.state),
        state=job.state.lower(),
        size=plural(job.size, "slot") if job.size else f"wants {_range(job)}",
        message=brief(job.present or job.message),
        notes=_notes(job),
        share=done.work_share,
    )


def _notes(job: JobView) -> tuple[str, ...]:
    """Return the job's priority, and its speed and end where they are known."""
    done, end = job.progress, end_of(job)
    speed = (
        f"{short(done.samples_per_s)} {done.unit}/s" if job.size and done.samples_per_s is not None else ""
    )
    ends = f"ends in {duration(end[0])}" if end is not None else ""
    return tuple(one for one in (speed, ends, f"priority {job.spec.priority}") if one)


def _range(job: JobView) -> str:
    low, high = job.spec.elastic.min, job.spec.elastic.max
    return plural(low, "slot") if low == high else f"{low} to {high} slots"
