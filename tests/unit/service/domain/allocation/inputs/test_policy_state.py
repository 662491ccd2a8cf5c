"""A budget between rounds: what it carries over, and that it learns what arrives and what is spent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from headway.contract.views.jobs import JobProgress, JobState
from service.domain.allocation.decision.plan import decide
from service.domain.allocation.inputs.policy_state import advanced, asked_since, hour_of, unsized_jobs
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.problem import Solve
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import EndedJob, LedgerTotals, Measurement, Snapshot
from service.domain.policies.budget import BudgetPolicy, BudgetState
from service.domain.policies.framework.class_statistics import ClassLoad, ClassStatistics, configuration_keys
from service.domain.policies.framework.loss_curve import LossCurve
from service.domain.policies.framework.marginal_gain import MarginalGain
from service.domain.policies.framework.policy import Choices, Policy, RoundHistory, RoundInput
from service.domain.policies.goodput import Goodput
from service.domain.policies.optimus import Optimus
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of


def cluster(usd_per_slot_h: float = 1.0, holding: int = 4) -> Snapshot:
    """Two measured jobs that could use eight slots each; the first one holds some."""
    elastic = {"min": 1, "max": 8, "sizes": "pow2"}
    progress = JobProgress(samples=0, total_samples=1_000_000)
    jobs = [
        job_of(
            "gpt-1", JobState.RUNNING, age_s=600, spec=spec_of("gpt-1", elastic=elastic), progress=progress
        ),
        job_of("gpt-2", spec=spec_of("gpt-2", elastic=elastic), progress=progress, age_s=5),
    ]
    speed = tuple(Measurement("cpu", size, 100.0 * size**0.8, 500, global_batch=512) for size in (1, 2, 4, 8))
    held = {"gpt-1": [("n", slot) for slot in range(holding)]}
    snapshot = snapshot_of([node_of("n", slots=16)], jobs, held, {"gpt-1": speed, "gpt-2": speed})
    return replace(snapshot, usd_per_slot_h={"cpu": usd_per_slot_h})


def later(snapshot: Snapshot, state: Any, seconds: float) -> Snapshot:
    return replace(
        snapshot, now=snapshot.now + timedelta(seconds=seconds), policy_state=json.loads(json.dumps(state))
    )


def test_only_a_budget_remembers() -> None:
    assert advanced(Goodput(), build_round(cluster())) == (Goodput(), {})
    fixed = BudgetPolicy(usd_per_h=4.0, mu_h_per_usd=0.5)
    assert advanced(fixed, build_round(cluster())) == (fixed, {})


def test_what_is_carried_over_survives_the_database() -> None:
    snapshot = cluster()
    _, state = advanced(BudgetPolicy(usd_per_h=4.0), build_round(snapshot))
    _, again = advanced(BudgetPolicy(usd_per_h=4.0), build_round(later(snapshot, state, 10.0)))
    assert again["state"]["budget"]["elapsed_s"] == 10.0
    assert again["state"]["budget"]["spent_usd"] == pytest.approx(4 * 10 / 3600)
    assert set(again["state"]["classes"]["classes"]) == {"default/gpt"}


def test_slots_stand_for_dollars_where_nothing_has_a_price() -> None:
    snapshot = cluster(usd_per_slot_h=0.0)
    _, state = advanced(BudgetPolicy(usd_per_h=4.0), build_round(snapshot))
    _, again = advanced(BudgetPolicy(usd_per_h=4.0), build_round(later(snapshot, state, 3600.0)))
    assert again["state"]["budget"]["spent_usd"] == pytest.approx(4.0)


@pytest.mark.parametrize(("holding", "rises"), [(16, True), (1, False)])
def test_spending_moves_the_price_of_delay(holding: int, rises: bool) -> None:
    snapshot = cluster(holding=holding)
    state: Mapping[str, Any] = {}
    mus = []
    for _ in range(30):
        policy, state = advanced(BudgetPolicy(usd_per_h=6.0), build_round(snapshot))
        assert isinstance(policy, BudgetPolicy)
        mus.append(policy.mu_h_per_usd)
        snapshot = later(snapshot, state, 600.0)
    assert (mus[-1] > mus[1]) is rises


def spent(snapshot: Snapshot, usd: float) -> Snapshot:
    """The snapshot as it is read: with what the ledger has since the hour that was asked for."""
    since = asked_since(snapshot.policy_state) or hour_of(snapshot.now)
    return replace(snapshot, spent=LedgerTotals(since, usd))


def test_what_the_ledger_has_counts_and_not_what_is_held() -> None:
    """Machines that lie idle are paid for too."""
    snapshot = cluster(holding=1)
    _, state = advanced(BudgetPolicy(usd_per_h=4.0), build_round(spent(snapshot, 7.0)))
    snapshot = spent(later(snapshot, state, 60.0), 7.5)
    _, state = advanced(BudgetPolicy(usd_per_h=4.0), build_round(snapshot))
    assert state["state"]["budget"]["spent_usd"] == pytest.approx(0.5)
    snapshot = spent(later(snapshot, state, 60.0), 7.4)
    _, state = advanced(BudgetPolicy(usd_per_h=4.0), build_round(snapshot))
    assert state["state"]["budget"]["spent_usd"] == pytest.approx(0.5), (
        "a bill that was corrected gives no money back"
    )


def test_the_ledger_is_asked_from_another_hour_on_once_a_day() -> None:
    snapshot, asked = cluster(holding=4), set()
    state: Mapping[str, Any] = {}
    for _ in range(60):
        snapshot = later(snapshot, state, 1800.0)
        since = asked_since(state) or hour_of(snapshot.now)
        hours = (snapshot.now - since).total_seconds() / 3600
        _, state = advanced(BudgetPolicy(usd_per_h=4.0), build_round(spent(snapshot, 4.0 * hours)))
        asked.add(since)
    assert len(asked) == 2
    assert state["state"]["budget"]["spent_usd"] == pytest.approx(59 * 2.0)


def test_a_silence_says_nothing_of_what_was_spent() -> None:
    snapshot = cluster()
    _, state = advanced(BudgetPolicy(usd_per_h=4.0), build_round(snapshot))
    _, again = advanced(BudgetPolicy(usd_per_h=4.0), build_round(later(snapshot, state, 7200.0)))
    assert again["state"]["budget"]["spent_usd"] == 0.0


def test_less_money_buys_fewer_slots() -> None:
    def slots(usd_per_h: float) -> int:
        round_ = build_round(cluster())
        policy, _ = advanced(BudgetPolicy(usd_per_h=usd_per_h), round_)
        return sum(
            len(held) for one in decide(round_, policy, solve).decisions for held in one.allocation.values()
        )

    assert slots(2.0) <= slots(6.0) <= slots(16.0)
    assert slots(2.0) < slots(16.0)


def test_without_a_budget_all_slots_may_be_paid_for_however_much_arrives() -> None:
    given = build_round(cluster()).given
    keys = configuration_keys(given.configurations)
    rates = dict(zip(keys, given.goodput[0].tolist(), strict=True))
    load = ClassLoad(arrived=30.0, sized=30.0, samples=30e6, rates=rates)
    statistics = ClassStatistics(observed_s=1e5, classes={"default/gpt": load})

    def price_of_delay(usd_per_h: float) -> float:
        policy = BudgetPolicy(usd_per_h=usd_per_h)
        state = policy.after_spending(given, statistics, BudgetState(), usd_per_h=4.0, elapsed_s=60.0)
        return state.mu_h_per_usd

    assert price_of_delay(1.0) > price_of_delay(16.0)
    assert price_of_delay(-1.0) == pytest.approx(price_of_delay(16.0))


@pytest.mark.parametrize(
    "kept",
    [
        {"state": {"classes": {"classes": {}, "observed_s": 1.0, "of_tomorrow": 2}}},
        {"at": "yesterday"},
        {"at": "2026-11-01T12:00:00"},
        {"state": {"budget": {"of_tomorrow": 1}}},
    ],
)
def test_what_another_version_has_carried_over_stops_nothing(kept: dict[str, Any]) -> None:
    policy, _ = advanced(BudgetPolicy(usd_per_h=4.0), build_round(replace(cluster(), policy_state=kept)))
    assert isinstance(policy, BudgetPolicy)


@dataclass
class Recorder:
    """A policy that keeps the history that it is given."""

    name: str = "recorder"
    seen: list[RoundHistory] = field(default_factory=list)

    def advance(self, given: RoundInput, history: RoundHistory) -> tuple[Policy, Mapping[str, Any]]:
        self.seen.append(history)
        return Goodput(), {}

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        return Goodput().choose(given, solve)


def test_policies_get_the_reports_of_the_scripts() -> None:
    """After 2,500 samples in the third epoch, half of which counts as done, an epoch has 1,000."""
    progress = [
        JobProgress(samples=2500, epoch=2, metrics={"loss": 0.75, "accuracy": 0.5}),
        JobProgress(samples=40, epoch=0),
        JobProgress(),
    ]
    jobs = [job_of(f"j{row}", age_s=9.0 - row, progress=one) for row, one in enumerate(progress)]
    recorder = Recorder()
    advanced(recorder, build_round(snapshot_of([node_of("n", 4)], jobs)))
    (history,) = recorder.seen
    assert history.job_ids == ["j0", "j1", "j2"]
    reports = history.reports
    assert reports is not None
    assert reports.done.tolist() == [2500.0, 40.0, 0.0]
    assert reports.loss == pytest.approx([0.75, np.nan, np.nan], nan_ok=True)
    assert reports.epoch_samples == pytest.approx([1000.0, np.nan, np.nan], nan_ok=True)


def test_policies_count_the_progress_of_jobs_that_end_by_it() -> None:
    snapshot = cluster()
    made = {"progress": 1500.0, "total_progress": 5000.0, "dataset_samples": 500}
    progress = JobProgress(samples=2500, total_samples=5000, epoch=4, metrics={"loss": 0.5}, **made)
    jobs = {**snapshot.jobs, "gpt-1": replace(snapshot.jobs["gpt-1"], progress=progress)}
    recorder = Recorder()
    advanced(recorder, build_round(replace(snapshot, jobs=jobs)))
    (history,) = recorder.seen
    assert history.samples.tolist() == [5000.0, 1_000_000.0]
    assert history.reports is not None
    assert history.reports.done.tolist() == [1500.0, 0.0]
    assert history.reports.epoch_samples[0] == 500.0


def test_optimus_learns_from_reports_round_by_round() -> None:
    """Losses of 2 / (1 + samples / 1,000) in four rounds are a curve, from which the work follows."""
    state: Mapping[str, Any] = {}
    for samples in (1000, 2000, 3000, 4000):
        progress = JobProgress(samples=samples, epoch=2, metrics={"loss": 2 / (1 + samples / 1000)})
        snapshot = snapshot_of([node_of("n", 4)], [job_of("j", progress=progress)])
        chosen, state = advanced(Optimus(), build_round(later(snapshot, state, samples / 100)))
    assert isinstance(chosen, MarginalGain)
    assert chosen.fitted is not None
    # Relative to the first loss the slope is 1 / 2,000 and the offset 1 / 2; an epoch has 4,000 / 2.5 samples.
    expected = LossCurve(slope=5e-4, offset=0.5, floor=0.0).converged_at(1600.0, 0.01) - 4000.0
    assert chosen.fitted[0] == pytest.approx(expected, rel=1e-3)
    assert [one[0] for one in state["state"]["losses"]["j"]] == [1000.0, 2000.0, 3000.0, 4000.0]


def test_jobs_of_unknown_length_are_remembered_and_counted_at_their_end() -> None:
    snapshot = cluster()
    unknown = replace(snapshot.jobs["gpt-1"], progress=JobProgress(samples=0, total_samples=None))
    snapshot = replace(snapshot, jobs={**snapshot.jobs, "gpt-1": unknown})
    _, state = advanced(BudgetPolicy(usd_per_h=4.0), build_round(snapshot))
    assert unsized_jobs(state) == ["gpt-1"]
    assert state["state"]["classes"]["classes"]["default/gpt"]["sized"] == 1.0
    rest = {"gpt-2": snapshot.jobs["gpt-2"]}
    ended = replace(
        later(snapshot, state, 10.0), jobs=rest, held={}, ended=(EndedJob("default/gpt", 3_000_000),)
    )
    _, state = advanced(BudgetPolicy(usd_per_h=4.0), build_round(ended))
    assert unsized_jobs(state) == []
    found = state["state"]["classes"]["classes"]["default/gpt"]
    assert (found["sized"], found["samples"]) == (pytest.approx(2.0, rel=1e-4), pytest.approx(4e6, rel=1e-4))


@pytest.mark.parametrize(
    ("kept", "expected"),
    [({}, []), ({"unsized": None}, []), ({"unsized": "gpt"}, []), ({"unsized": ["a", 3]}, ["a"])],
)
def test_unsized_jobs_of_another_version_are_read_as_far_as_they_are_known(
    kept: dict[str, Any], expected: list[str]
) -> None:
    assert unsized_jobs(kept) == expected
