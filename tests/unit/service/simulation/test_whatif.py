from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headway.contract.views.jobs import JobProgress
from headway.contract.views.progress import LossProgress
from headway.contract.views.simulations import SimulationRequest
from service.domain.cluster.snapshot import EndedRun, Measurement, PolicySetting, Snapshot
from service.domain.jobs.job import Job
from service.simulation.report.outcomes import Runs, comparisons, differences, outcome_of
from service.simulation.whatif import compare
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of

HORIZON_S = 10_000.0


def runs(
    *ends_s: tuple[float, ...], endless: tuple[bool, ...] = (), usd: float = 1.0, first: int = 0
) -> Runs:
    """Return runs of jobs that start after 10 s, with a row of ends for each seed."""
    end_s = np.array(ends_s, dtype=np.float64)
    jobs = end_s.shape[1]
    ids = tuple(f"j{index + first}" for index in range(jobs))
    return Runs(
        label="case",
        setting=PolicySetting("fifo", {}),
        ids=ids,
        names=tuple(f"name-{one}" for one in ids),
        endless=np.array(endless or (False,) * jobs),
        submit_s=np.zeros(jobs),
        start_s=np.full(end_s.shape, 10.0),
        end_s=end_s,
        usd=np.full(end_s.shape, usd),
        slot_h=np.full(end_s.shape, 0.5),
        changes=np.full(end_s.shape, 2.0),
        slots=4,
    )


def test_figures_are_means_over_runs_and_count_the_horizon_for_jobs_that_go_on() -> None:
    found = outcome_of(runs((1000.0, 3000.0), (2000.0, np.inf)), HORIZON_S)
    assert (found.avg_s, found.median_s) == (4000.0, 2500.0)
    assert (found.unfinished, found.last_s, found.wait_s) == (0.5, 6500.0, 10.0)
    assert (found.usd, found.slot_h, found.changes_per_job) == (2.0, 1.0, 2.0)
    assert found.utilisation == pytest.approx(1.0 / (4 * 6500 / 3600))


def test_a_job_that_nobody_knows_the_end_of_is_in_no_average() -> None:
    found = outcome_of(runs((1000.0, np.inf), endless=(False, True)), HORIZON_S)
    assert (found.jobs, found.avg_s, found.unfinished) == (2, 1000.0, 0.0)
    only = outcome_of(runs((np.inf,), endless=(True,)), HORIZON_S)
    assert (only.avg_s, only.median_s, only.p90_s) == (0.0, 0.0, 0.0)


def test_jobs_side_by_side_with_the_range_of_their_runs() -> None:
    before, after = runs((100.0, 300.0), (200.0, np.inf), (np.inf, np.inf)), runs((400.0,), first=1)
    first, second = comparisons([before, after])
    assert (first.name, second.name) == ("name-j0", "name-j1")
    assert first.outcomes[0] is not None
    assert (first.outcomes[0].end_low_s, first.outcomes[0].end_s, first.outcomes[0].end_high_s) == (
        100,
        200,
        None,
    )
    assert first.outcomes[1] is None
    assert second.outcomes[0] is not None
    assert second.outcomes[0].end_s is None
    assert second.outcomes[1] is not None
    assert second.outcomes[1].end_s == 400.0


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (runs((1000.0,)), runs((750.0,)), "jobs end 25% sooner on average: after 12m30s instead of 16m40s"),
        (runs((1000.0,)), runs((1500.0,)), "jobs end 50% later on average: after 25m00s instead of 16m40s"),
        (runs((1000.0,)), runs((1001.0,)), "jobs end as soon as before on average, after 16m41s"),
        (runs((1000.0,)), runs((1000.0,), usd=1.5), "it costs 50% more: $1.50 instead of $1.00"),
        (runs((1000.0,)), runs((1000.0,), usd=0.5), "it costs 50% less: $0.50 instead of $1.00"),
        (runs((1000.0,)), runs((1000.0,), usd=40.0), "it costs 40 times as much: $40.00 instead of $1.00"),
        (runs((1000.0,)), runs((1000.0,)), "it costs the same, $1.00"),
        (runs((1.0, 1e3)), runs((1.0, np.inf)), "1 more job has not ended within the horizon"),
        (runs((1e3, 900.0)), runs((400.0, 900.0)), "sooner ends: name-j0 by 10m00s"),
        (runs((1e3, 900.0)), runs((1e3, 960.0)), "later ends: name-j1 by 1m00s"),
        (runs((1000.0,)), runs((1000.0, 1.0)), "1 job more; only the other jobs are compared"),
        (runs((1000.0, 1.0)), runs((1000.0,)), "1 job fewer; only the other jobs are compared"),
    ],
)
def test_differences_in_words(before: Runs, after: Runs, says: str) -> None:
    assert says in list(differences(before, after, HORIZON_S))


def measured_cluster() -> Snapshot:
    """Return a cluster of one slot, with four jobs of 1,000 samples whose class processes 10 samples a second."""
    measured = Measurement("cpu", 1, 10.0, 500, global_batch=32, local_batch=32, step_s=3.2)
    jobs = [
        job_of(
            f"j{number}",
            spec=spec_of(f"train-{number}", batch={"global": 32}),
            age_s=10.0,
            progress=JobProgress(total_samples=1000),
        )
        for number in range(4)
    ]
    snapshot = snapshot_of([node_of("n1", 1)], jobs)
    return replace(snapshot, class_measurements={"default/train": (measured,)}, usd_per_slot_h={"cpu": 36.0})


def curved(job_id: str, converged_work: float) -> Job:
    """Return a job of unknown length whose loss curve converges at this work."""
    progress = JobProgress(samples=320, loss_curve=LossProgress(converged_work=converged_work))
    return job_of(job_id, spec=spec_of(job_id, batch={"global": 32}), age_s=10.0, progress=progress)


@pytest.mark.parametrize(("of_a", "of_b", "first"), [(500.0, 50_000.0, "a"), (50_000.0, 500.0, "b")])
def test_the_loss_curves_of_a_snapshot_order_jobs_of_unknown_length(
    of_a: float, of_b: float, first: str
) -> None:
    snapshot = snapshot_of([node_of("n1", 1)], [curved("a", of_a), curved("b", of_b)])
    measured = Measurement("cpu", 1, 10.0, 500, global_batch=32, local_batch=32, step_s=3.2)
    snapshot = replace(
        snapshot,
        class_measurements={"default/a": (measured,), "default/b": (measured,)},
        ended_runs=(EndedRun("default/old", 2000.0, 200.0, converged_samples=1000.0, run="python train.py"),),
    )
    found = compare(snapshot, SimulationRequest.model_validate({"seeds": 1}), {})
    starts_s = {one.job_id: one.outcomes[0].start_s for one in found.jobs if one.outcomes[0] is not None}
    assert len(starts_s) == 2
    assert min(starts_s, key=lambda job: starts_s[job] or 0.0) == first


def test_four_jobs_on_one_slot_and_on_four() -> None:
    """By hand, each takes 100 s after a start of 3 s: one after another, or all at once."""
    snapshot = measured_cluster()
    request = SimulationRequest.model_validate(
        {"changes": [{"change": "add_nodes", "device_kind": "cpu", "nodes": 3}], "seeds": 1}
    )
    progress: list[float] = []
    found = compare(snapshot, request, {}, on_progress=progress.append)
    before, after = found.outcomes
    assert before.avg_s == pytest.approx(2.5 * 103, rel=0.05)
    assert before.last_s == pytest.approx(4 * 103, rel=0.05)
    assert after.avg_s == after.last_s == pytest.approx(103, rel=0.05)
    assert before.usd == pytest.approx(4.12, rel=0.05)
    assert after.usd == pytest.approx(4.12, rel=0.05)
    assert (before.unfinished, after.unfinished) == (0, 0)
    assert found.outcomes[0].differences == []
    assert "60% sooner" in found.outcomes[1].differences[0]
    assert progress == sorted(progress)
    assert progress[-1] <= 1.0
    assert compare(snapshot, request, {}) == found


def test_a_policy_that_keeps_batches_is_compared_at_the_batch_of_the_job_file() -> None:
    """A class that is three times as fast with a batch of 512, which its noise makes as good as eight of 64."""
    measured = tuple(
        Measurement(
            "cpu", 1, speed, 500, global_batch=batch, step_s=batch / speed, gradient_sqr=1.0, gradient_var=1e6
        )
        for batch, speed in ((64, 100.0), (512, 300.0))
    )
    batch = {"policy": "adaptive", "global": 64, "max_global": 512}
    spec = spec_of("train-1", batch=batch, elastic={"max": 1})
    job = job_of("j", spec=spec, progress=JobProgress(total_samples=30_000))
    snapshot = replace(snapshot_of([node_of("n1", 1)], [job]), class_measurements={"default/train": measured})
    request = SimulationRequest.model_validate(
        {"policies": [{"policy": "elastic-dp"}, {"policy": "elastic-fixed"}], "seeds": 1}
    )
    _, larger, own = compare(snapshot, request, {}).outcomes
    assert larger.avg_s == pytest.approx(100, rel=0.2)
    assert own.avg_s == pytest.approx(300, rel=0.2)
    kept = replace(snapshot, policy=PolicySetting("elastic-fixed", {}))
    baseline, first, second = compare(kept, request, {}).outcomes
    assert baseline.avg_s == second.avg_s == own.avg_s
    assert first.avg_s == larger.avg_s


def test_policies_are_compared_without_any_change() -> None:
    snapshot = measured_cluster()
    request = SimulationRequest.model_validate(
        {"policies": [{"policy": "fifo"}, {"policy": "budget", "parameters": {"usd_per_h": 2}}], "seeds": 1}
    )
    labels = [one.label for one in compare(snapshot, request, {}).outcomes]
    assert labels == ["as it is", "fifo", "budget (usd_per_h=2)"]
