"""Tests of renting in a replay: the decisions of the service, with machines that boot and are billed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from service.domain.policies.budget import BudgetPolicy
from service.domain.policies.framework.policy import Policy
from service.domain.policies.registry import policy
from service.domain.rental.machines import Machine, MachineState, cost_usd
from service.domain.rental.rental_targets import RentalRules
from service.simulation.model.clusters import configurations_of
from service.simulation.model.world import Application, Arrival, ClusterRules, Kind, Replay, View, World
from service.simulation.replay.engine import replay
from service.simulation.replay.metrics import summary
from service.simulation.replay.renting import START, ReplayRenting, ServiceRenter, time_of

HOUR_S = 3600.0
KINDS = (Kind(name="t4", node_slots=(1,) * 20, usd_per_slot_h=1.0),)
CONFIGURATIONS = configurations_of(KINDS)
CURVED = Application(
    name="curved",
    boundaries=np.array([0.0, 20 * HOUR_S]),
    goodput=(CONFIGURATIONS.slots**0.7)[None, :],
    restart_s=30.0,
)
"""Twenty hours on one slot, with the speedup k^0.7."""
EVENTS = ClusterRules(view=View.ORACLE, on_events=True, live_pause_s=1.0, interval_s=900.0)
RENTING = ReplayRenting(rules=RentalRules(max_machines=20, idle_s=120.0), boot_s=120.0, min_billed_s=60.0)


def world(*submits_s: float, most: int = 16, rules: ClusterRules = EVENTS) -> World:
    return World(
        kinds=KINDS,
        configurations=CONFIGURATIONS,
        applications=(CURVED,),
        arrivals=tuple(
            Arrival(id=f"job-{index}", submit_s=at_s, application=0, max_slots=most)
            for index, at_s in enumerate(submits_s)
        ),
        rules=rules,
    )


def played(scene: World, given: Policy, renting: ReplayRenting = RENTING) -> Replay:
    return replay(scene, given, clock=lambda: 0.0, renting=(renting, ServiceRenter()))


def paid_s(machine: Machine) -> float:
    assert machine.billed_from is not None
    assert machine.billed_to is not None
    return (machine.billed_to - machine.billed_from).total_seconds()


@pytest.mark.parametrize(("mu", "width"), [(1e-6, 16), (0.2, 12), (0.43, 5), (1.0, 2)])
def test_a_job_runs_at_its_width_from_the_end_of_the_boot(mu: float, width: int) -> None:
    """The idle time at the end costs a little: 12 slots become 11 at mu = 0.2."""
    found = played(world(10.0), BudgetPolicy(mu_h_per_usd=mu))
    (size,) = CONFIGURATIONS.slots[found.segments.column].tolist()
    assert size == pytest.approx(width, abs=1)
    assert len(found.machines) == size
    assert found.jobs.start_s[0] == pytest.approx(10.0 + 120.0)
    assert found.jobs.end_s[0] == pytest.approx(130.0 + 30.0 + 20 * HOUR_S / size**0.7)


def test_machines_are_paid_from_the_decision_until_they_have_been_idle() -> None:
    found = played(world(10.0), BudgetPolicy(mu_h_per_usd=0.43))
    ends_s = found.jobs.end_s[0]
    for one in found.machines:
        assert one.billed_from == time_of(10.0)
        assert paid_s(one) == pytest.approx(ends_s - 10.0 + 120.0, abs=1.0)
    usd = sum(cost_usd(one, time_of(ends_s)) for one in found.machines)
    assert usd == pytest.approx(5 * (ends_s + 110.0) / HOUR_S, rel=1e-3)


def test_idle_machines_go_back_between_jobs_and_come_again() -> None:
    found = played(world(0.0, 10 * HOUR_S, most=4), BudgetPolicy(mu_h_per_usd=1e-6))
    first, second = found.jobs.end_s
    assert first < 10 * HOUR_S < second
    assert len(found.machines) == 8, "four for each job"
    for one in found.machines[:4]:
        assert one.state is MachineState.GONE
        assert one.billed_to is not None
        assert first + 120.0 <= (one.billed_to - START).total_seconds() <= first + 120.0 + 900.0
    assert [one.billed_from for one in found.machines[4:]] == [time_of(10 * HOUR_S)] * 4


def test_a_second_job_takes_over_the_machines_of_the_first() -> None:
    """It is submitted just before the first ends: its machines boot while the first ones become free."""
    alone = float(played(world(0.0, most=4), BudgetPolicy(mu_h_per_usd=1e-6)).jobs.end_s[0])
    found = played(world(0.0, alone + 30.0, most=4), BudgetPolicy(mu_h_per_usd=1e-6))
    assert len(found.machines) == 4
    assert found.jobs.start_s[1] == pytest.approx(alone + 30.0, abs=1.0)


def test_a_minimum_of_an_hour_is_paid() -> None:
    short = replace(CURVED, boundaries=np.array([0.0, 60.0]))
    scene = replace(world(0.0), applications=(short,))
    found = played(scene, BudgetPolicy(mu_h_per_usd=0.2), replace(RENTING, min_billed_s=HOUR_S))
    (machine,) = found.machines
    assert cost_usd(machine, time_of(found.end_s)) == pytest.approx(1.0)


def test_machines_of_a_job_that_grows_dear_go_back_and_the_job_moves() -> None:
    """The second phase scales worse, so that its width is smaller: nothing is lost but the pauses."""
    stages = replace(
        CURVED,
        boundaries=np.array([0.0, 10 * HOUR_S, 20 * HOUR_S]),
        goodput=np.stack([CONFIGURATIONS.slots**0.7, CONFIGURATIONS.slots**0.3]),
    )
    found = played(replace(world(0.0), applications=(stages,)), BudgetPolicy(mu_h_per_usd=0.2))
    sizes = CONFIGURATIONS.slots[found.segments.column].tolist()
    assert sizes[0] == pytest.approx(12, abs=1)
    assert sizes[-1] <= 4
    released = [one for one in found.machines if paid_s(one) < found.end_s / 2]
    assert len(released) >= 8
    trained_h = sum(
        (to_s - from_s) / HOUR_S
        for from_s, to_s in zip(found.segments.from_s, found.segments.to_s, strict=True)
    )
    assert trained_h * HOUR_S == pytest.approx(found.jobs.end_s[0] - found.jobs.start_s[0], rel=1e-6)


def test_the_slots_in_use_never_exceed_the_machines() -> None:
    found = played(world(0.0, 900.0, 1800.0, 2000.0), BudgetPolicy(mu_h_per_usd=0.3))
    assert (found.rounds.slots_used <= found.rounds.slots_present).all()
    assert summary(found)["unfinished"] == 0
    assert all(one.state is MachineState.GONE for one in found.machines)


def test_the_same_replay_twice_and_rounds_at_intervals_only() -> None:
    by_minute = replace(EVENTS, on_events=False, live_pause_s=None, interval_s=300.0)
    scenes = [world(0.0, 900.0, rules=by_minute) for _ in range(2)]
    first, second = (played(scene, BudgetPolicy(mu_h_per_usd=0.3)) for scene in scenes)
    assert first.jobs.end_s.tolist() == second.jobs.end_s.tolist()
    assert first.machines == second.machines
    assert all(after % 300.0 == 0 for after in first.rounds.time_s)


def test_a_budget_steers_what_is_rented() -> None:
    """Six jobs, one an hour, each of at least $20."""
    scene = world(*(HOUR_S * index for index in range(6)))
    spent, hours = [], []
    for usd_per_h in (8.0, 18.0):
        found = played(scene, BudgetPolicy(usd_per_h=usd_per_h))
        usd = sum(cost_usd(one, time_of(found.end_s)) for one in found.machines)
        spent.append(usd / (found.end_s / HOUR_S))
        hours.append(summary(found)["avg_jct_h"])
    assert spent[0] <= 8.0 * 1.1
    assert spent[0] < spent[1] <= 18.0 * 1.1
    assert hours[0] > hours[1]


def test_other_policies_rent_by_the_best_buy() -> None:
    found = played(world(0.0, most=4), policy("goodput"))
    assert found.machines
    assert all("delay" not in one.message for one in found.machines)
    assert summary(found)["unfinished"] == 0
