"""The global batch of a decision comes with its slots, within what was tried, and its message says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.contract.views.jobs import JobProgress, JobState
from service.domain.allocation.decision.plan import Action, Decision, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Measurement, Snapshot
from service.domain.jobs.job import Job, class_of
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of
from tests.unit.service.domain.perf.test_batch_evidence import history

NOISE = 1e6
"""Far beyond every batch here: a sample makes as much progress in the largest one."""


def measured(slots: int, batch: int, noise: float = NOISE, **fields: Any) -> Measurement:
    """Steps of 1 s and 1 ms a sample of a slot, whatever the number of slots: only larger batches are faster."""
    return Measurement(
        "cpu",
        slots,
        batch / (1.0 + 0.001 * batch / slots),
        200,
        **{"global_batch": batch, "generation": 1, "gradient_sqr": 1.0, "gradient_var": noise, **fields},
    )


def adaptive(state: JobState = JobState.RUNNING, *, rule: str | None = None, **fields: Any) -> Job:
    """A job that was submitted at batch 64, may take 4,096, and has one to four slots."""
    batch = {"policy": "adaptive", "global": 64, "max_global": 4096, **fields.pop("batch", {})}
    elastic = {"max": 4, **fields.pop("elastic", {})}
    progress = JobProgress(global_batch=64, max_global_batch=4096, lr_rule=rule)
    return job_of(
        "job-1",
        state,
        age_s=600.0,
        spec=spec_of("job-1", batch=batch, elastic=elastic),
        **{"live": True, "generation": 1, "progress": progress, **fields},
    )


def growing(job: Job, *measurements: Measurement) -> Snapshot:
    """A job on one of four slots, with measurements."""
    return snapshot_of([node_of("n", 4)], [job], {job.id: [("n", 0)]}, {job.id: measurements})


def waiting(*alike: Measurement, **fields: Any) -> Snapshot:
    """A job without measurements, and those of its class."""
    job = adaptive(JobState.PENDING, progress=JobProgress(), generation=0, live=False, **fields)
    snapshot = snapshot_of([node_of("n", 4)], [job])
    return replace(snapshot, class_measurements={class_of(job.spec): alike})


def decided(snapshot: Snapshot) -> Decision:
    (decision,) = decide(build_round(snapshot), Goodput(), solve).decisions
    return decision


def test_a_job_that_grows_takes_the_batch_of_its_new_size_in_the_same_order() -> None:
    decision = decided(growing(adaptive(), measured(1, 64), measured(1, 128), measured(1, 256)))
    assert (decision.action, decision.allocation) == (Action.CHANGE, {"n": (0, 1)})
    assert decision.global_batch == 512
    assert decision.message.endswith("; batch 512 at 2 slots")


@pytest.mark.parametrize(
    ("tried", "most", "expected"), [(64, 4096, 128), (1024, 4096, 2048), (256, 300, 300)]
)
def test_a_change_brings_at_most_twice_the_largest_batch_that_was_tried(
    tried: int, most: int, expected: int
) -> None:
    job = adaptive(batch={"max_global": most})
    decision = decided(growing(job, *(measured(1, batch) for batch in (64, tried))))
    assert (decision.action, decision.global_batch) == (Action.CHANGE, expected)


def test_a_small_noise_scale_keeps_the_batch_small() -> None:
    """M / ((1 + 0.0005 M) (10 + M)) is largest at the root of 10 / 0.0005, and within 0.5 % of that around it."""
    decision = decided(growing(adaptive(), measured(1, 64, 10.0), measured(1, 256, 10.0)))
    assert decision.action is Action.CHANGE
    assert decision.global_batch == pytest.approx(141, rel=0.25)


@pytest.mark.parametrize(
    ("reference", "tried", "expected"),
    [(64, 256, 512), (64, 64, 128), (32, 256, 128)],
    ids=["tried", "untried", "at another batch in the job file"],
)
def test_a_start_counts_what_jobs_of_its_class_have_tried(reference: int, tried: int, expected: int) -> None:
    alike = [measured(4, batch, reference_batch=reference) for batch in (64, tried)]
    decision = decided(waiting(*alike))
    assert (decision.action, decision.global_batch) == (Action.START, expected)
    assert decision.message.endswith(f"; batch {expected} at 4 slots")


def test_the_first_job_of_a_class_starts_with_the_batch_of_its_file() -> None:
    decision = decided(waiting())
    assert (decision.action, decision.global_batch) == (Action.START, None)
    assert "batch" not in decision.message


def test_a_fixed_batch_is_never_carried() -> None:
    snapshot = growing(adaptive(batch={"policy": "fixed", "max_global": None}), measured(1, 64))
    decision = decided(snapshot)
    assert decision.global_batch is None
    assert "batch" not in decision.message


def test_a_policy_that_keeps_batches_starts_at_that_of_the_job_file() -> None:
    snapshot = waiting(measured(4, 256, reference_batch=64))
    assert decided(replace(snapshot, keeps_batch=True)).global_batch == 64


@pytest.mark.parametrize(
    ("said", "rule"), [("none", None), ("auto", "none")], ids=["by the job file", "by its ranks"]
)
def test_without_a_rule_a_larger_batch_counts_as_one_step_and_the_message_says_so(
    said: str, rule: str | None
) -> None:
    job = adaptive(rule=rule, batch={"lr_rule": said}, elastic={"max": 1})
    decision = decided(growing(job, measured(1, 64), measured(1, 512)))
    assert (decision.action, decision.global_batch) == (Action.KEEP, None)
    assert (
        "batch 64 at 1 slot: its learning rate does not follow the batch (lr_rule: none)" in decision.message
    )


@pytest.mark.parametrize(("said", "rule"), [("auto", None), ("auto", "adascale"), ("none", "sqrt")])
def test_until_the_ranks_say_otherwise_a_rule_scales_unless_the_file_says_none(
    said: str, rule: str | None
) -> None:
    job = adaptive(rule=rule, batch={"lr_rule": said}, elastic={"max": 1})
    assert decided(growing(job, measured(1, 64))).action is Action.ADAPT


@pytest.mark.parametrize(("effect", "counted"), [(2.0, 2.0), (0.5, 0.5), (-1.0, 0.0)])
def test_the_measured_effect_goes_to_the_ranks_with_the_batch(effect: float, counted: float) -> None:
    """A sample never counts as more than one of the job's own batch: no job ends before it has read its epochs."""
    job = adaptive()
    snapshot = growing(job, measured(1, 64, 500.0), measured(1, 128, 500.0))
    histories = (history([64], effect, phi=500.0), history([2048], effect, phi=500.0))
    snapshot = replace(snapshot, loss_histories={class_of(job.spec): histories})
    decision = decided(snapshot)
    assert decision.global_batch is not None
    assert decision.batch_effect == pytest.approx(counted, abs=0.15)
    before = decided(replace(snapshot, loss_histories={}))
    assert (before.global_batch is None, before.batch_effect) == (False, 1.0)
