"""A script's reported steps show whether it continues after a stop."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.run_facts import ProgressSource, Resumption
from headway.contract.runtime import FirstStep, Hello, Progress
from headway.contract.views.jobs import JobProgress
from service.domain.jobs.progress import after_message
from service.domain.jobs.resumption import (
    FEWEST_STEPS,
    evidence,
    kept_text,
    resumes,
    resumption,
    stop_text,
)
from tests.unit.service.builders import job_of, spec_of


def first_step(generation: int, samples: int) -> FirstStep:
    return FirstStep(rank=0, generation=generation, at_s=0.0, samples=samples, plain=True)


def progress(generation: int, samples: int, *, batch: int = 0, steps: int = 10) -> Progress:
    return Progress(
        rank=0, generation=generation, at_s=0.0, epoch=0, samples=samples, total_samples=10_000, steps=steps,
        step_s_sum=2.0, step_s_squares=0.4, global_batch=batch, local_batch=0, accumulation=1,
    )  # fmt: skip


def after(*messages: FirstStep | Progress | Hello) -> JobProgress:
    found = JobProgress()
    for message in messages:
        found = after_message(found, message)
    return found


@pytest.mark.parametrize(
    ("began_at", "known", "lost"),
    [(100, True, 0), (101, True, 0), (90, True, 10), (50, True, 50), (49, False, 51), (0, False, 100)],
)
def test_a_script_resumes_where_it_was_stopped_or_begins_again(began_at: int, known: bool, lost: int) -> None:
    found = after(first_step(1, 0), progress(1, 100), first_step(2, began_at))
    assert resumes(job_of(progress=found)) is known
    assert (found.samples, found.lost_samples) == (began_at, lost)
    assert f"step {began_at} after a stop at step 100" in evidence(job_of(progress=found))


def test_a_stop_after_few_steps_shows_nothing_and_leaves_what_is_known() -> None:
    few = FEWEST_STEPS - 1
    early = after(first_step(1, 0), progress(1, few), first_step(2, 0))
    assert resumes(job_of(progress=early)) is None
    late = after(first_step(1, 0), progress(1, 50), first_step(2, 50))
    kept = after_message(late.model_copy(update={"samples": few}), first_step(3, 0))
    assert resumes(job_of(progress=kept)) is True
    batches = after(first_step(1, 0), progress(1, 64 * few, batch=64), first_step(2, 64 * few))
    assert resumes(job_of(progress=batches)) is None


def test_a_message_that_comes_twice_is_no_evidence() -> None:
    found = after(first_step(1, 0), progress(1, 100), first_step(1, 100))
    assert (found.resumption, found.lost_samples) == (None, 0)


def test_the_library_and_the_user_need_no_evidence() -> None:
    of_library = after(Hello(rank=0, generation=1, at_s=0.0), first_step(1, 5), first_step(2, 0))
    assert (of_library.source, of_library.resumption) == (ProgressSource.LIBRARY, None)
    assert resumes(job_of(progress=of_library)) is True
    assert resumes(job_of(progress=of_library, spec=spec_of("j", resumes=False))) is False
    assert resumes(job_of(spec=spec_of("j", resumes=True))) is True
    assert resumes(job_of()) is None


def test_a_step_of_unknown_size_counts_as_one_sample() -> None:
    found = after(first_step(1, 0), progress(1, 100))
    assert (found.samples_per_s, found.global_batch, found.total_samples) == (5.0, None, 10_000)
    assert after(first_step(1, 0), progress(1, 640, batch=64)).samples_per_s == 320.0


@settings(max_examples=50)
@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 2000))
def test_who_keeps_more_is_never_worse_evidence(first: int, done: int, began: int) -> None:
    less, more = (
        resumes(job_of(progress=after(first_step(1, first), progress(1, first + done), first_step(2, one))))
        for one in (began, began + 1)
    )
    assert (less is None) is (more is None)
    assert not (less and not more)


RESUMED, BEGAN_AGAIN = (
    JobProgress(
        source=ProgressSource.SCRIPT,
        resumption=Resumption(generation=2, first=0, stopped_at=1200, began_at=began, resumes=began > 0),
    )
    for began in (1199, 0)
)
BY_LIBRARY = JobProgress(source=ProgressSource.LIBRARY)
UNKNOWN = JobProgress(source=ProgressSource.SCRIPT)


@pytest.mark.parametrize(
    ("stopped_at", "began_at", "batch", "evidence_"),
    [
        (10, 10, None, True),
        (9, 9, None, None),
        (640, 640, 64, True),
        (639, 639, 64, None),
        (640, 320, 64, True),
        (640, 319, 64, False),
        (640, 0, 64, False),
        (640, 900, 64, True),
    ],
)
def test_a_script_resumes_if_it_kept_half_of_at_least_ten_steps(
    stopped_at: int, began_at: int, batch: int | None, evidence_: bool | None
) -> None:
    """Its first step was at 1,000 samples, which count for neither side."""
    before = JobProgress(samples=1000 + stopped_at, first_samples=1000, global_batch=batch)
    found = resumption(before, began_at=1000 + began_at, generation=4)
    assert (None if found is None else found.resumes) is evidence_
    if found is not None:
        assert (found.generation, found.first) == (4, 1000)
        assert (found.stopped_at, found.began_at) == (1000 + stopped_at, 1000 + began_at)


def test_a_script_that_never_reported_a_step_shows_nothing() -> None:
    assert resumption(JobProgress(samples=5000), began_at=5000, generation=2) is None


@pytest.mark.parametrize(
    ("progress_", "stated", "known", "says"),
    [
        (UNKNOWN, None, None, "has not been stopped"),
        (RESUMED, None, True, "went on at step 1,199 after a stop at step 1,200"),
        (BEGAN_AGAIN, None, False, "began again at step 0 after a stop at step 1,200"),
        (BY_LIBRARY, None, True, "the training library"),
        (RESUMED, False, False, "resumes: false"),
        (BEGAN_AGAIN, True, True, "resumes: true"),
        (BY_LIBRARY, False, False, "resumes: false"),
    ],
    ids=["unknown", "resumed", "again", "library", "stated no", "stated yes", "stated, library"],
)
def test_the_user_precedes_the_library_and_that_the_evidence(
    progress_: JobProgress, stated: bool | None, known: bool | None, says: str
) -> None:
    spec = spec_of("j") if stated is None else spec_of("j", resumes=stated)
    job = job_of(progress=progress_, spec=spec)
    assert resumes(job) is known
    assert says in evidence(job)


@pytest.mark.parametrize(
    ("progress_", "says"),
    [
        (BY_LIBRARY, "begins again: no checkpoint yet"),
        (
            BY_LIBRARY.model_copy(update={"checkpoint_samples": 12_800}),
            "from the checkpoint at 12,800 samples",
        ),
        (UNKNOWN.model_copy(update={"checkpoint_samples": 640}), "from the checkpoint at 640 samples"),
        (UNKNOWN, "unknown"),
        (RESUMED, "starts again; it went on at step 1,199"),
        (BEGAN_AGAIN, "starts again; it began again at step 0"),
    ],
)
def test_what_a_job_without_slots_has_kept(progress_: JobProgress, says: str) -> None:
    assert says in kept_text(job_of(progress=progress_))


def test_only_the_library_is_known_to_save_a_checkpoint_when_it_stops() -> None:
    assert "saves a checkpoint" in stop_text(job_of(progress=BY_LIBRARY))
    for other in (UNKNOWN, RESUMED, JobProgress()):
        assert "unknown" in stop_text(job_of(progress=other))
