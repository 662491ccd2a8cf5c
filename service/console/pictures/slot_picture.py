"""The chart of slots over time as fragments: slots are rows, time runs to the right, each job has a colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest

from headway.contract.agents import NodeState
from service.console.html.badges import tone_of_node
from service.console.html.fragments import Content, Fragment, Listing
from service.console.html.palette import colour_of
from service.console.html.text import duration, listed, plural
from service.console.pictures.slot_geometry import DEFAULT_WINDOW, NARROW_SHARE, WINDOW_WORDS, Strip
from service.console.pictures.slot_periods import SlotPeriod, SlotPhase
from service.usecases.ports.nodes import NodeSlots, QuarantinePeriod

ROW, BAR, HEAD, GAP, TOP = 22, 18, 22, 8, 24
"""Heights in pixels of a row, a bar, a node's heading, the gap below a node, and the axis. The style sheet
has the same values."""
_NAMED_SHARE = 0.02
"""Share of the window below which a bar has no room for a name."""
_TABLE_ROWS = 60


@dataclass(frozen=True, slots=True)
class SlotBar:
    """A period, or several that are too short to distinguish.

    `x` and `width` are percentages of the strip, and `text_x` is a percentage of the bar.
    """

    job_id: str
    name: str
    tone: str
    x: str
    width: str
    text_x: str
    title: str


@dataclass(frozen=True, slots=True)
class SlotLane:
    """The row of one slot, with `y` in pixels."""

    index: int
    y: int
    bars: tuple[SlotBar, ...]


@dataclass(frozen=True, slots=True)
class NodeLanes:
    """The rows of one node. A node of one slot has no heading; its name is beside its row."""

    id: str
    name: str
    state: str
    tone: str
    kind: str
    lanes: tuple[SlotLane, ...]

    @property
    def has_heading(self) -> bool:
        """True if the node's name has a row of its own."""
        return len(self.lanes) > 1


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A row of the table below the chart."""

    slot: str
    job_id: str
    job: str
    phase: str
    from_at: str
    to_at: str
    took: str
    why: str
    following: str
    """Name of the job that held the slot next; empty if it is the same one, or there is none yet."""


@dataclass(frozen=True, slots=True)
class HistoryAxis:
    """The strip with its ticks. `height` is that of the whole chart in pixels."""

    strip: Strip
    height: int


@dataclass(frozen=True, slots=True)
class HistoryWords:
    """The chart as sentences and a table. `left_out` is empty if everything is shown."""

    sentences: tuple[str, ...]
    left_out: str
    rows: tuple[HistoryRow, ...]
    more: int


@dataclass(frozen=True, slots=True)
class HistoryViews:
    """The data of the chart.

    The keys of `periods` and `quarantines` are (node id, slot). `hidden_nodes` and `hidden_slots` count what
    is not shown, and `hidden_releases` counts the grants that ended there within the window. `complete_from`
    is set if older periods are left out.
    """

    nodes: Sequence[NodeSlots]
    periods: Mapping[tuple[str, int], Sequence[SlotPeriod]]
    quarantines: Mapping[tuple[str, int], Sequence[QuarantinePeriod]]
    hidden_nodes: int = 0
    hidden_slots: int = 0
    hidden_releases: int = 0
    complete_from: datetime | None = None

    def jobs(self) -> list[str]:
        """Return the ids of the drawn jobs, those that hold slots first."""
        found = [one for periods in self.periods.values() for one in periods if one.job_id]
        found.sort(key=lambda one: (one.to_at is not None, one.from_at, one.job_id))
        return list(dict.fromkeys(one.job_id for one in found))


@dataclass(frozen=True, slots=True)
class HistoryPicture:
    """All parts of the chart."""

    axis: HistoryAxis
    nodes: tuple[NodeLanes, ...]
    words: HistoryWords

    def contents(self) -> list[Content]:
        """Return the fragments of the chart."""
        return [
            Fragment("history-axis", "history_axis", self.axis),
            Fragment("history-words", "history_words", self.words),
            Listing(
                "history-names", tuple(Fragment(f"names-{one.id}", "lane_names", one) for one in self.nodes)
            ),
            Listing("history-lanes", tuple(Fragment(f"lanes-{one.id}", "lanes", one) for one in self.nodes)),
        ]


def history_picture(
    views: HistoryViews, strip: Strip, window: str, colours: Mapping[str, int]
) -> HistoryPicture:
    """Return the chart of the data on a strip."""
    nodes, y = [], TOP
    for node in views.nodes:
        y += HEAD if len(node.slots) > 1 else 0
        lanes = tuple(
            SlotLane(index, y + ROW * row, _bars(views, (node.id, index), strip, colours))
            for row, index in enumerate(node.slots)
        )
        well = node.state is NodeState.READY
        nodes.append(
            NodeLanes(
                id=node.id,
                name=node.name,
                state="" if well else node.state.lower(),
                tone=tone_of_node(node.state),
                kind=node.device_kind,
                lanes=lanes,
            )
        )
        y += ROW * len(node.slots) + GAP
    return HistoryPicture(HistoryAxis(strip, y), tuple(nodes), _words(views, strip, window))


def _bars(
    views: HistoryViews, key: tuple[str, int], strip: Strip, colours: Mapping[str, int]
) -> tuple[SlotBar, ...]:
    shown = [one for one in views.periods.get(key, ()) if one.to_at is None or one.to_at > strip.begins]
    bars = [_bar(group, strip, colours) for group in grouped(shown, NARROW_SHARE * strip.window_s)]
    for one in views.quarantines.get(key, ()):
        title = f"In quarantine from {_clock(one.since)}: {one.message}"
        bars.append(_placed(strip, one.since, one.released_at, title, tone="quarantine", name="quarantine"))
    return tuple(bars)


def grouped(periods: Iterable[SlotPeriod], narrow_s: float) -> list[list[SlotPeriod]]:
    """Group periods, oldest first. Neighbours that are too narrow to distinguish share a group."""
    groups: list[list[SlotPeriod]] = []
    joins = False
    for one in sorted(periods, key=lambda one: one.from_at):
        narrow = one.to_at is not None and (one.to_at - one.from_at).total_seconds() < narrow_s
        last = groups[-1][-1].to_at if groups else None
        near = last is not None and (one.from_at - last).total_seconds() < narrow_s
        if narrow and joins and near:
            groups[-1].append(one)
        else:
            groups.append([one])
        joins = narrow
    return groups


def _bar(group: Sequence[SlotPeriod], strip: Strip, colours: Mapping[str, int]) -> SlotBar:
    first, to_at = group[0], group[-1].to_at
    jobs = {(one.job_id, one.job_name) for one in group}
    if len(jobs) > 1:
        return _placed(strip, first.from_at, to_at, _several(group), tone="several")
    colour = f"job-{colour_of(colours, first.job_id)}" if first.job_id else "other"
    phase = first.phase if len(group) == 1 else SlotPhase.RUNNING
    title = _title(first) if len(group) == 1 else _several(group)
    tone = f"{colour} {phase}"
    return _placed(strip, first.from_at, to_at, title, tone=tone, name=first.job_name, job_id=first.job_id)


def _placed(
    strip: Strip,
    from_at: datetime,
    to_at: datetime | None,
    title: str,
    *,
    tone: str,
    name: str = "",
    job_id: str = "",
) -> SlotBar:
    left = strip.place(from_at)
    width = max(strip.place(to_at) - left, 100 * NARROW_SHARE * strip.window_s / strip.length_s)
    named = width * strip.length_s >= 100 * _NAMED_SHARE * strip.window_s
    # The window may start one step after the strip: there, a name is visible for as long as its bar is.
    text_x = f"{100 * (100 * strip.step_s / strip.length_s) / width:.2f}%" if left == 0 else "0"
    return SlotBar(job_id, name if named else "", tone, f"{left:.3f}%", f"{width:.3f}%", text_x, title)


def _title(one: SlotPeriod) -> str:
    parts = [one.job_name]
    if one.generation:
        parts.append(f"generation {one.generation}")
    if one.size:
        parts.append(plural(one.size, "slot"))
    if one.job_id:
        parts.append(one.phase)
    until = f"to {_clock(one.to_at)} ({_took(one)})" if one.to_at is not None else "until now"
    why = f". Then: {one.why}" if one.why else ""
    return f"{', '.join(parts)}, from {_clock(one.from_at)} {until}{why}"


def _several(group: Sequence[SlotPeriod]) -> str:
    """Return a text such as `9 short periods from … to …: d8 5 times, d10 4 times`."""
    counts = Counter(one.job_name for one in group)
    times = listed(
        f"{name} {'once' if count == 1 else f'{count} times'}" for name, count in counts.most_common(6)
    )
    to_at = group[-1].to_at
    until = _clock(to_at) if to_at is not None else "now"
    return f"{len(group)} short periods from {_clock(group[0].from_at)} to {until}: {times}"


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S} UTC"


def _took(one: SlotPeriod) -> str:
    return duration((one.to_at - one.from_at).total_seconds()) if one.to_at is not None else ""


def _words(views: HistoryViews, strip: Strip, window: str) -> HistoryWords:
    everything = [
        (one.from_at, f"{node.name} {index}", one, following)
        for node in views.nodes
        for index in node.slots
        for one, following in _with_following(views.periods.get((node.id, index), ()))
        if one.to_at is None or one.to_at > strip.begins
    ]
    everything.sort(key=lambda one: (one[0], one[1]), reverse=True)
    rows = tuple(_row(slot, one, following) for _, slot, one, following in everything[:_TABLE_ROWS])
    length = WINDOW_WORDS.get(window, WINDOW_WORDS[DEFAULT_WINDOW])
    sentences = [_now(views), _changes([one[:3] for one in everything], strip, length)]
    return HistoryWords(
        tuple(one for one in sentences if one), _left_out(views), rows, max(0, len(everything) - _TABLE_ROWS)
    )


def _now(views: HistoryViews) -> str:
    slots = sum(len(node.slots) for node in views.nodes)
    held = sum(
        1
        for node in views.nodes
        for index in node.slots
        if any(one.to_at is None for one in views.periods.get((node.id, index), ()))
    )
    if not slots:
        return "No host has joined yet: there are no slots to show."
    return f"{held:,} of the {plural(slots, 'slot')} shown {'is' if held == 1 else 'are'} held now."


def _changes(everything: Sequence[tuple[datetime, str, SlotPeriod]], strip: Strip, length: str) -> str:
    """Return the number of jobs that held the slots, and how often they started or changed their slots."""
    jobs = {(one.job_id, one.job_name) for _, _, one in everything}
    if not jobs:
        return f"No job held any of them in the last {length}."
    begun = {
        (one.job_name, one.generation or from_at)
        for from_at, _, one in everything
        if from_at > strip.begins and one.phase is not SlotPhase.STOPPING
    }
    text = f"In the last {length} {plural(len(jobs), 'job')} held them"
    if not begun:
        return f"{text}, and nothing changed."
    name, most = Counter(name for name, _ in begun).most_common(1)[0]
    times = "once" if len(begun) == 1 else f"{len(begun):,} times"
    often = f"; most often {name}: {most:,} times" if most > 1 else ""
    return f"{text} and started or changed {times}{often}."


def _left_out(views: HistoryViews) -> str:
    parts = []
    if views.hidden_nodes:
        parts.append(
            f"{plural(views.hidden_nodes, 'node')} with {plural(views.hidden_slots, 'slot')} "
            f"{'is' if views.hidden_nodes == 1 else 'are'} not shown, where slots were given back "
            f"{views.hidden_releases:,} times. Shown are those with the most changes; the page of each node shows its own slots."
        )
    elif views.hidden_slots:
        parts.append(f"{plural(views.hidden_slots, 'slot')} of this node are not shown.")
    if views.complete_from is not None:
        parts.append(
            f"Periods that ended before {_clock(views.complete_from)} are not shown: there are too many."
        )
    return " ".join(parts)


def _with_following(periods: Iterable[SlotPeriod]) -> Iterable[tuple[SlotPeriod, str]]:
    """Yield the periods of a slot, each with the name of the job that held the slot next.

    The name is empty if the same job goes on, or no job followed.
    """
    ordered = sorted(periods, key=lambda one: one.from_at)
    for one, then in zip_longest(ordered, ordered[1:]):
        other = then is not None and (then.job_id, then.job_name) != (one.job_id, one.job_name)
        yield one, then.job_name if other else ""


def _row(slot: str, one: SlotPeriod, following: str) -> HistoryRow:
    return HistoryRow(
        slot=slot,
        job_id=one.job_id,
        job=one.job_name,
        phase=one.phase if one.job_id else "held",
        from_at=f"{one.from_at.astimezone(UTC):%H:%M:%S}",
        to_at=f"{one.to_at.astimezone(UTC):%H:%M:%S}" if one.to_at is not None else "now",
        took=_took(one),
        why=one.why,
        following=following,
    )
