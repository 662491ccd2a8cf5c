"""Reasons of decisions: the constant for programs, and the numbers in the message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from headway.contract.views.jobs import Reason, SizeOption
from service.domain.allocation.decision.explain import (
    all_options,
    why_keep,
    why_later,
    why_less,
    why_put_off,
    why_start,
)
from service.domain.allocation.inputs.notes import Note
from service.domain.allocation.inputs.round import Round, build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.placement.placement import Placement, PlacementStep
from service.domain.cluster.snapshot import Snapshot
from service.domain.policies.framework.policy import Choices
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import clusters, node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import (
    RUNNING,
    case_of,
    elastic_job,
    on,
    running_alone,
    speeds,
    spot,
)

STAYS = {"n": (0, 1)}


def round_and_choices(snapshot: Snapshot) -> tuple[Round, Choices]:
    round_ = build_round(snapshot)
    return round_, Goodput().choose(round_.given, round_.contest.solver(solve))


def options(snapshot: Snapshot, row: int = 0) -> dict[int, SizeOption]:
    """The options of a job by number of slots."""
    return {one.slots: one for one in all_options(*round_and_choices(snapshot))[row]}


def test_options_are_the_configurations_within_reach() -> None:
    found = options(running_alone(2, points=speeds((1, 100.0), (2, 190.0))))
    assert set(found) == {1, 2, 3, 4}
    assert {size for size, one in found.items() if one.measured} == {1, 2}
    assert found[2].note == "current"
    assert found[1].speedup == pytest.approx(1.0)
    assert found[2].speedup == pytest.approx(1.9, rel=0.05)
    assert found[2].goodput_samples_per_s == pytest.approx(190.0, rel=0.1)
    assert all(one.one_slot_measured for one in found.values())


def test_speedups_without_a_measurement_on_one_slot_are_marked_as_assumed() -> None:
    """A user fixed two slots at once; a job of one size never runs on one slot."""
    fixed = options(running_alone(2, points=speeds((2, 190.0)), pinned_size=2))
    assert fixed[2].measured
    assert not any(one.one_slot_measured for one in fixed.values())
    rigid = options(running_alone(4, points=speeds((4, 400.0)), low=4, high=4))
    assert rigid[4].measured
    assert not rigid[4].one_slot_measured


def test_the_speedup_is_relative_to_one_slot_even_without_that_size() -> None:
    """The smallest size is four slots: 320 samples a second are 80 on each."""
    found = options(running_alone(4, points=speeds((4, 320.0), (8, 560.0)), low=4))
    assert found[4].speedup == pytest.approx(4.0)
    assert found[8].speedup == pytest.approx(7.0, rel=0.05)


def test_an_unknown_speed_is_no_number_and_an_impossible_utility_neither() -> None:
    found = options(snapshot_of([node_of("n", 4)], [elastic_job()]))
    assert {one.goodput_samples_per_s for one in found.values()} == {None}
    young = options(running_alone(2, points=speeds((2, 100.0)), age_s=3.0))
    assert young[4].utility is None
    assert young[2].utility is not None
    assert "3 s ago" in young[4].note


def test_a_job_that_no_configuration_serves_has_no_options() -> None:
    assert options(snapshot_of([node_of("n", 2)], [elastic_job(low=5, high=5)])) == {}


def test_options_of_an_anchored_column_name_the_anchor_and_both_markets_price() -> None:
    nodes = [node_of("f", 1, usd_per_slot_h=3.0), spot("s", 2, usd_per_slot_h=0.5)]
    job = elastic_job(low=2, high=3, market="mixed")
    found = all_options(*round_and_choices(snapshot_of(nodes, [job])))[0]
    anchored = {one.slots: one for one in found if one.anchor}
    assert anchored[2].anchor == 1
    assert anchored[2].market.value == "spot"
    assert anchored[2].usd_per_h == 3.5
    assert anchored[2].nodes == 2


def test_identical_waiting_jobs_share_their_options() -> None:
    jobs = [elastic_job(name) for name in ("a", "b")]
    found = all_options(*round_and_choices(snapshot_of([node_of("n", 4)], jobs)))
    assert found[0] is found[1]
    different = [jobs[0], elastic_job("b", 2, 4)]
    found = all_options(*round_and_choices(snapshot_of([node_of("n", 4)], different)))
    assert found[0] != found[1]


@given(clusters())
@settings(max_examples=25)
def test_shared_options_are_those_of_each_job(snapshot: Snapshot) -> None:
    round_, choices = round_and_choices(snapshot)
    configurations = round_.columns.configurations
    shared = all_options(round_, choices)
    for row in range(len(round_.jobs)):
        shown = ~np.isin(round_.notes.codes[row], (Note.NOT_ALLOWED, Note.TOO_FAR))
        assert [one.slots for one in shared[row]] == configurations.slots[shown].tolist()
        assert [one.usd_per_h for one in shared[row]] == configurations.usd_per_h[shown].tolist()
        assert all(one.speedup >= 0 for one in shared[row])


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({}, ["2 cpu slots", "starts small"]),
        ({"elastic": {"resize": "restart"}}, ["starts small", "resumes"]),
        ({"elastic": {"resize": "restart"}, "resumes": True}, ["starts small"]),
        ({"elastic": {"resize": "never"}}, ["2 cpu slots"]),
        ({"high": 2}, ["2 cpu slots"]),
    ],
)
def test_a_start_promises_growth_only_where_it_can_come(fields: dict[str, Any], parts: list[str]) -> None:
    case = case_of(snapshot_of([node_of("n", 8)], [elastic_job(**{"low": 2, "high": 8, **fields})]), size=2)
    why = why_start(case, {"n": (0, 1)})
    assert why.reason is Reason.ALLOCATED
    assert [part for part in parts if part not in why.message] == []
    for word in ("starts small", "resumes"):
        assert (word in why.message) == (word in parts), word
    assert "name-of-n" in why.message


def test_a_measured_start_says_nothing_of_growth() -> None:
    case = case_of(
        snapshot_of([node_of("n", 8)], [elastic_job(high=8)], {}, {"j": speeds((2, 100.0))}), size=2
    )
    assert why_start(case, STAYS).message == "2 cpu slots on name-of-n"


def test_a_start_by_class_says_so() -> None:
    job = elastic_job("gpt-2", name="gpt-2", high=8)
    snapshot = replace(
        snapshot_of([node_of("n", 8)], [job]), class_measurements={"default/gpt": speeds((2, 100.0))}
    )
    assert "class" in why_start(case_of(snapshot, size=2), STAYS).message


def test_a_job_keeps_its_size_with_the_gap_and_what_is_refused() -> None:
    case = case_of(running_alone(2, points=speeds((2, 190.0)), age_s=4.0), size=2, gap=0.0123)
    why = why_keep(case)
    assert why.reason is Reason.PROGRESSING
    assert "gap 1.23%" in why.message
    assert why.message.count("4 s ago") == 2, "sizes 3 and 4"


def test_at_most_five_refusals_are_listed() -> None:
    points = speeds(*((size, 100.0) for size in range(1, 9)))
    why = why_keep(case_of(running_alone(1, points=points, age_s=4.0), size=1))
    assert why.message.count(" slots: ") == 5


def test_a_pinned_job_is_kept_by_request() -> None:
    why = why_keep(case_of(running_alone(2, pinned_size=2), size=2))
    assert why.message.startswith("fixed at 2 cpu slots")
    other = why_keep(case_of(running_alone(2, pinned_size=4), size=2))
    assert "gap" in other.message


def test_a_change_that_waits_for_other_jobs_names_those_of_the_own_project() -> None:
    jobs = [
        elastic_job(),
        elastic_job("leaver", state=RUNNING),
        elastic_job("foreign", state=RUNNING, project="q"),
    ]
    held = {"leaver": on("n", 0), "foreign": on("n", 1)}
    snapshot = snapshot_of([node_of("n", 4)], jobs, held)
    row = [job.id for job in build_round(snapshot).jobs].index("j")
    case = case_of(snapshot, row, size=2)

    def text(*waits_for: str) -> str:
        why = why_later(case, Placement(allocation={}, step=PlacementStep.WAIT, waits_for=waits_for))
        assert why.reason is Reason.WAITING_FOR_CAPACITY
        return why.message

    assert "leaver has" in text("leaver")
    assert "leaver and a job of another project have" in text("leaver", "foreign")
    assert "other jobs have" in text()
    assert "other jobs have" in text("ended-meanwhile")


def test_a_job_continues_on_a_part_until_its_next_slots_are_free() -> None:
    why = why_less(case_of(running_alone(4), size=8), 3)
    assert why.reason is Reason.WAITING_FOR_CAPACITY
    assert "3 cpu slots" in why.message
    assert "8 cpu slots" in why.message


def test_a_postponed_change_names_its_target_and_condition() -> None:
    why = why_put_off(case_of(running_alone(2), size=4), "the nodes have taken their commands")
    assert why.reason is Reason.PROGRESSING
    assert "2 cpu slots for now" in why.message
    assert "4 cpu slots once the nodes have taken their commands" in why.message


def test_what_a_job_holds_as_text() -> None:
    assert case_of(running_alone(2), size=4).present == "2 cpu slots"
    assert case_of(running_alone(2), size=4).chosen == "4 cpu slots"
    gone = (replace(node_of("n", 2), slots={0: "cpu"}), node_of("m", 2))
    assert case_of(running_alone(2, gone), size=1).present == "2 cpu slots", "also slots that are gone"
    both = elastic_job(state=RUNNING, market="mixed", high=3)
    snapshot = snapshot_of([node_of("f", 2), spot("s", 2)], [both], {"j": [*on("f", 0), *on("s", 0, 1)]})
    case = case_of(snapshot, size=1)
    assert {pool.name: count for pool, count in case.held.items()} == {"cpu": 1, "cpu (spot)": 2}
    option = case.option(of_now=True)
    assert option is not None
    assert (option.slots, option.anchor) == (3, 1)


def test_the_option_of_a_job_that_holds_nothing_is_none() -> None:
    case = case_of(snapshot_of([node_of("n", 4)], [elastic_job()]), size=1)
    assert case.option(of_now=True) is None
    new = case.option(of_now=False)
    assert new is not None
    assert new.slots == 1
