"""Ended jobs in a policy's input: classes, units, and what is unknown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headway.contract.views.jobs import JobProgress
from headway.contract.views.progress import LossProgress
from service.domain.allocation.inputs.recurring import ended_by_class, finished_jobs, length_classes
from service.domain.allocation.inputs.round import build_round
from service.domain.cluster.snapshot import EndedRun, Measurement
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of

RUN = "python train.py"
JOBS = [
    job_of("a", spec=spec_of("train-7")),
    job_of("b", spec=spec_of("train-8")),
    job_of("c", spec=spec_of("eval")),
]
ENDED = (
    EndedRun("default/train", 100.0, 10.0, run=RUN),
    EndedRun("default/other", 500.0, 20.0, converged_samples=125.0, run=RUN),
    EndedRun("default/train", 300.0, 30.0, run=RUN),
    EndedRun("default/eval", 50.0, 40.0, run=RUN),
)


def test_classes_are_those_of_the_present_jobs_and_work_is_in_their_unit() -> None:
    found = finished_jobs(ENDED, JOBS, np.array([0.5, 0.7, 2.0]))
    # Present classes in the order of their names: eval, train. Others follow.
    assert found.job_class.tolist() == [1, 2, 1, 0]
    assert found.work.tolist() == [100 * 0.6, 0.0, 300 * 0.6, 100.0]
    assert found.run_s.tolist() == [10.0, 20.0, 30.0, 40.0]
    assert found.beyond is not None
    assert np.isnan(found.beyond).tolist() == [True, False, True, True]
    assert found.beyond[1] == 4.0
    by_class = ended_by_class(ENDED, found)
    assert [*by_class] == ["default/train", "default/other", "default/eval"]
    np.testing.assert_equal(by_class["default/train"], ((60.0, 10.0, np.nan), (180.0, 30.0, np.nan)))
    assert by_class["default/other"] == ((0.0, 20.0, 4.0),)
    np.testing.assert_equal(by_class["default/eval"], ((100.0, 40.0, np.nan),))


def test_ended_jobs_of_the_same_name_with_another_command_are_another_class() -> None:
    jobs = [JOBS[0], job_of("b", spec=spec_of("train-8", run=f"{RUN} --epochs 10"))]
    ended = (
        *ENDED[:1],
        replace(ENDED[0], run=f"{RUN} --epochs 10"),
        replace(ENDED[0], run=f"{RUN} --epochs 90"),
    )
    found = finished_jobs(ended, jobs, np.ones(2))
    assert length_classes(jobs).tolist() == found.job_class[:2].tolist() == [0, 1]
    assert found.job_class[2] not in length_classes(jobs)


def test_without_jobs_or_ended_jobs_the_arrays_are_empty() -> None:
    assert finished_jobs((), JOBS, np.ones(3)).work.shape == (0,)
    assert finished_jobs(ENDED, [], np.zeros(0)).work.tolist() == [0.0] * 4
    assert ended_by_class(ENDED, None) == {}


def test_samples_are_no_work_while_no_speed_is_known_and_the_digest_follows_what_is_learned() -> None:
    job = replace(JOBS[0], progress=JobProgress(samples=640))
    snapshot = snapshot_of([node_of("n")], [job])
    before, after = build_round(snapshot), build_round(replace(snapshot, ended_runs=ENDED))
    given = after.given
    assert (given.done is not None, given.finished is not None) == (True, True)
    assert np.asarray(given.done).tolist() == [0.0]
    assert given.finished is not None
    assert given.finished.job_class[0] == given.job_class[0]
    assert given.finished.work.tolist() == [0.0] * 4
    assert given.finished.run_s.tolist() == [10.0, 20.0, 30.0, 40.0]
    assert before.digest != after.digest


def test_loss_curves_are_in_the_unit_of_the_work_and_part_of_the_digest() -> None:
    curve = JobProgress(samples=640, loss_curve=LossProgress(converged_work=3200.0))
    speed = {"default/train": (Measurement("cpu", 1, 100.0, 500, global_batch=32),)}
    jobs = [replace(JOBS[0], progress=curve), JOBS[1]]
    snapshot = snapshot_of([node_of("n")], jobs)
    plain = build_round(replace(snapshot, class_measurements=speed, jobs={job.id: job for job in JOBS[:2]}))
    round_ = build_round(replace(snapshot, class_measurements=speed))
    given = round_.given
    assert given.converged is not None
    assert given.done is not None
    assert given.converged[0] / given.done[0] == 5.0
    assert np.isnan(given.converged[1])
    assert plain.digest != round_.digest
