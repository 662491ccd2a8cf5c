"""The picture of slots over time: periods, coordinates, and what is said where not everything fits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from service.console.html.fragments import Listing
from service.console.pictures.slot_geometry import WINDOWS_S, strip_at
from service.console.pictures.slot_periods import SlotPeriod, SlotPhase, TrainingHistory, slot_periods
from service.console.pictures.slot_picture import ROW, HistoryViews, SlotBar, grouped, history_picture
from service.console.pictures.slot_reader import MOST_LANES, chosen_nodes
from service.console.templates import Templates
from service.usecases.ports.jobs import SizeChange
from service.usecases.ports.nodes import HeldSlot, JobTurn, NodeSlots, QuarantinePeriod

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=1)
STARTING, RUNNING, STOPPING = SlotPhase.STARTING, SlotPhase.RUNNING, SlotPhase.STOPPING


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


def held(from_s: float, to_s: float | None, *, generation: int = 1, job: str = "j1") -> HeldSlot:
    released = None if to_s is None else at(to_s)
    return HeldSlot("n1", 0, job, job and f"name-{job}", generation, at(from_s), released)


def turn(second: float, kind: str, generation: int = 1, message: str = "") -> JobTurn:
    return JobTurn("j1", at(second), kind, generation, message)


def size(generation: int, slots: int, from_s: float, to_s: float | None) -> SizeChange:
    ended = None if to_s is None else at(to_s)
    return SizeChange(
        generation=generation,
        size=slots,
        device_kind="cpu",
        reason="ALLOCATED",
        message="",
        granted_at=at(from_s),
        ended_at=ended,
    )


def told(periods: list[SlotPeriod]) -> list[tuple[str, int, float, float | None]]:
    """Phase, generation, and seconds from and to."""
    return [
        (
            one.phase,
            one.generation,
            (one.from_at - NOW).total_seconds(),
            None if one.to_at is None else (one.to_at - NOW).total_seconds(),
        )
        for one in periods
    ]


def test_a_grant_is_cut_where_training_begins_changes_and_is_told_to_stop() -> None:
    history = TrainingHistory(
        turns=[
            turn(1, "start"),
            turn(4, "first_step"),
            turn(20, "prepare", 1, "from 2 to 1 slots: it gains more"),
            turn(21, "switch", 2, "shrank from 2 to 1"),
            turn(40, "vacate", 2, "makes room for b"),
        ],
        sizes=[size(1, 2, 0, 21), size(2, 1, 20, 41)],
    )
    periods = slot_periods(held(0, 42), LONG_AGO, history)
    assert told(periods) == [
        (STARTING, 1, 0, 4),
        (RUNNING, 1, 4, 21),
        (RUNNING, 2, 21, 40),
        (STOPPING, 2, 40, 42),
    ]
    assert [one.why for one in periods] == ["", "from 2 to 1 slots: it gains more", "", "makes room for b"]
    assert [one.size for one in periods] == [2, 2, 1, 1]


def test_a_newcomers_slot_starts_until_the_members_switch() -> None:
    turns = [turn(0, "prepare", 1), turn(6, "switch", 2), turn(30, "succeed", 2, "every rank finished")]
    periods = slot_periods(held(0, 30, generation=2), LONG_AGO, TrainingHistory(turns, [size(2, 4, 0, 30)]))
    assert told(periods) == [(STARTING, 2, 0, 6), (RUNNING, 2, 6, 30)]
    assert periods[-1].why == "every rank finished"


def test_a_start_that_never_trained_is_only_a_start() -> None:
    history = TrainingHistory([turn(3, "fail_rank", 1, "rank 0 ended with exit code 1")], [size(1, 1, 0, 3)])
    (period,) = slot_periods(held(0, 4), LONG_AGO, history)
    assert (period.phase, period.why) == (STARTING, "rank 0 ended with exit code 1")
    assert told(slot_periods(held(0, None), LONG_AGO, TrainingHistory())) == [(STARTING, 1, 0, None)]


def test_what_began_before_the_events_that_were_read_counts_as_training() -> None:
    assert told(slot_periods(held(0, None), at(1), TrainingHistory())) == [(RUNNING, 1, 0, None)]


def test_a_job_of_another_project_has_one_period_without_a_name_or_reason() -> None:
    (period,) = slot_periods(held(0, 9, generation=0, job=""), LONG_AGO)
    assert (period.job_id, period.phase, period.why, period.generation) == ("", RUNNING, "", 0)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 100),
            st.sampled_from(["start", "first_step", "prepare", "switch", "vacate", "cancel", "fail_rank"]),
            st.integers(1, 3),
        ),
        max_size=12,
    ),
    st.one_of(st.none(), st.floats(1, 100)),
)
def test_periods_of_a_grant_follow_one_another_without_gaps(
    events: list[tuple[float, str, int]], to_s: float | None
) -> None:
    turns = [turn(second, kind, generation) for second, kind, generation in sorted(events)]
    grant = held(0.5, to_s)
    periods = slot_periods(grant, LONG_AGO, TrainingHistory(turns))
    assert periods[0].from_at == grant.granted_at
    assert periods[-1].to_at == grant.released_at
    for one, following in pairwise(periods):
        assert one.to_at == following.from_at
    assert all(one.to_at is None or one.from_at <= one.to_at for one in periods)


@pytest.mark.parametrize("window_s", WINDOWS_S.values())
def test_the_window_lies_on_the_strip_until_the_strip_begins_anew(window_s: int) -> None:
    strip = strip_at(NOW, window_s)
    for share in (0.0, 0.5, 0.999):
        now = NOW + timedelta(seconds=strip.step_s * share)
        left = float(strip.shift(now).rstrip("%"))
        width = float(strip.width.rstrip("%"))
        assert left <= 0
        assert left + width >= 100
    # A moment stays where it is while the strip is the same, and `now` is the window's right edge.
    right = strip.place(NOW) / 100 * float(strip.width.rstrip("%")) + float(strip.shift(NOW).rstrip("%"))
    assert right == pytest.approx(100, abs=0.01)
    assert strip.place(None) == 100


def period(job: str, from_s: float, to_s: float | None) -> SlotPeriod:
    return SlotPeriod(job, job, 1, 1, RUNNING, at(from_s), None if to_s is None else at(to_s))


def test_only_neighbours_that_are_all_too_narrow_share_a_block() -> None:
    thrash = [period(f"j{number % 2}", number, number + 1) for number in range(5)]
    wide, later = period("j9", 5, 50), period("j3", 60, 61)
    groups = grouped([*thrash, wide, later], 3)
    assert [len(one) for one in groups] == [5, 1, 1]
    assert grouped([period("j1", 0, None), period("j2", 1, 2)], 3) == [
        [period("j1", 0, None)],
        [period("j2", 1, 2)],
    ]


def node(name: str, slots: int = 1, state: NodeState = NodeState.READY) -> NodeSlots:
    return NodeSlots(f"id-{name}", name, state, "", "cpu", tuple(range(slots)))


def bars_of(views: HistoryViews) -> list[list[SlotBar]]:
    picture = history_picture(views, strip_at(NOW, 900), "15m", {"j1": 3})
    return [list(lane.bars) for one in picture.nodes for lane in one.lanes]


def test_slots_are_rows_and_a_job_has_its_colour_name_and_title() -> None:
    short = [period(f"j{number % 2}", -300 + number, -299 + number) for number in range(8)]
    ill = QuarantinePeriod("id-a", 1, at(-60), None, "it fell off the bus")
    views = HistoryViews(
        nodes=[node("a", 2), node("b", 1, NodeState.LOST)],
        periods={("id-a", 0): [period("j1", -600, None)], ("id-b", 0): short},
        quarantines={("id-a", 1): [ill]},
    )
    (first,), (second,), (third,) = bars_of(views)
    assert (first.tone, first.name, first.job_id) == ("job-3 running", "j1", "j1")
    assert first.title == "j1, generation 1, 1 slot, running, from 11:50:00 UTC until now"
    assert (second.tone, second.title) == (
        "quarantine",
        "In quarantine from 11:59:00 UTC: it fell off the bus",
    )
    assert (third.tone, third.title) == (
        "several",
        "8 short periods from 11:55:00 UTC to 11:55:08 UTC: j0 4 times and j1 4 times",
    )
    picture = history_picture(views, strip_at(NOW, 900), "15m", {})
    (one, two) = picture.nodes
    assert (two.state, two.tone, two.has_heading) == ("lost", "bad", False)
    assert one.lanes[1].y - one.lanes[0].y == ROW
    assert picture.axis.height > two.lanes[0].y + ROW
    assert picture.words.sentences[0] == "1 of the 3 slots shown is held now."


def test_table_names_the_job_that_held_the_slot_next() -> None:
    turns = [
        period("j1", -600, -400),
        period("j1", -400, -300),
        period("j2", -200, -100),
        period("j1", -50, None),
    ]
    views = HistoryViews([node("a")], {("id-a", 0): turns}, {})
    rows = history_picture(views, strip_at(NOW, 900), "15m", {}).words.rows
    assert [(one.job, one.following) for one in reversed(rows)] == [
        ("j1", ""),
        ("j1", "j2"),
        ("j2", "j1"),
        ("j1", ""),
    ]


def test_nothing_is_drawn_anew_while_the_clock_goes_on_and_nothing_changes() -> None:
    views = HistoryViews([node("a")], {("id-a", 0): [period("j1", -600, None)]}, {})
    strip, later = strip_at(at(0), 900), strip_at(at(44), 900)
    assert strip == later
    assert (
        history_picture(views, strip, "15m", {}).contents()
        == history_picture(views, later, "15m", {}).contents()
    )


def test_five_thousand_nodes_are_bounded_and_the_busiest_are_shown() -> None:
    nodes = [node(f"n{number:04}", 8) for number in range(5000)]
    busy = {f"id-n{number:04}": number for number in (17, 4000, 4999)}
    shown = chosen_nodes(nodes, busy)
    assert sum(len(one.slots) for one in shown) == MOST_LANES
    assert {"n0017", "n4000", "n4999"} <= {one.name for one in shown}
    assert [one.name for one in shown] == sorted(one.name for one in shown)
    assert [len(one.slots) for one in chosen_nodes([node("big", 500)], {})] == [MOST_LANES]
    views = HistoryViews(
        shown, {}, {}, hidden_nodes=4992, hidden_slots=39936, hidden_releases=7, complete_from=NOW
    )
    left_out = history_picture(views, strip_at(NOW, 900), "15m", {}).words.left_out
    assert "4,992 nodes with 39,936 slots are not shown" in left_out
    assert "ended before 12:00:00 UTC are not shown" in left_out


def test_names_cannot_break_out_of_the_picture() -> None:
    evil = SlotPeriod("j1", 'a"><script>', 1, 1, RUNNING, at(-600), at(-1), "</title><b>")
    views = HistoryViews([node("<n>", 2)], {("id-<n>", 0): [evil]}, {})
    html, templates = "", Templates()
    for content in history_picture(views, strip_at(NOW, 900), "15m", {}).contents():
        for fragment in content.fragments if isinstance(content, Listing) else [content]:
            html += templates.fragment(fragment)
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "<b>" not in html
    assert "<n>" not in html
