"""Whether a script continues after a stop, from the steps that it reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.run_facts import ProgressSource
from headway.contract.runtime import FirstStep, Hello, Progress
from headway.contract.views.jobs import JobProgress
from service.domain.jobs.progress import after_message
from service.domain.jobs.resumption import FEWEST_STEPS, evidence, resumes
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


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 2000))
def test_who_keeps_more_is_never_worse_evidence(first: int, done: int, began: int) -> None:
    less, more = (
        resumes(job_of(progress=after(first_step(1, first), progress(1, first + done), first_step(2, one))))
        for one in (began, began + 1)
    )
    assert (less is None) is (more is None)
    assert not (less and not more)
