"""When a loss is survived in place, when it counts, and how long newcomers are left alone after a failure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.runtime import KILLED_FOR_MEMORY
from headway.contract.spec import Retry
from headway.contract.views.jobs import Reason
from service.domain.jobs.failures import RankExit, how_it_ended, killed_by, ran_out_of_memory, reason_of_loss
from service.domain.jobs.survival import counts_as_failure, decide_survival, growth_backoff_s, is_loss


def ended(exit_code: int | None = None, signal: int | None = None, *, completed: bool = False) -> RankExit:
    return RankExit(rank=0, exit_code=exit_code, signal=signal, stopped_by_agent=False, completed=completed)


@pytest.mark.parametrize(
    ("exit_", "loss"),
    [
        (ended(signal=9), True),
        (ended(), True),
        (ended(0), False),
        (ended(1), False),
        (ended(75), False),
        (ended(78), False),
        (ended(143), False),
        (ended(signal=6, completed=True), False),
    ],
)
def test_what_is_a_loss(exit_: RankExit, *, loss: bool) -> None:
    assert is_loss(exit_) is loss


def test_how_a_rank_ended_reads_as_the_rest_of_a_sentence() -> None:
    assert how_it_ended(ended(signal=9)) == "was killed by SIGKILL"
    assert how_it_ended(ended()) == "ended; its exit status is unknown"


@settings(max_examples=50)
@given(*[st.booleans()] * 4, *[st.integers(0, 5)] * 3)
def test_survival_needs_a_live_job_a_survivor_every_part_memory_and_a_retry_for_what_counts(
    live: bool, complete: bool, fits: bool, counted: bool, survivors: int, failures: int, budget: int
) -> None:
    survival = decide_survival(
        live=live,
        survivors=survivors,
        complete=complete,
        fits=fits,
        counted=counted,
        failures=failures,
        retry=Retry(infrastructure=budget),
    )
    assert survival.in_place is (
        live and survivors > 0 and complete and fits and (not counted or failures < budget)
    )
    assert bool(survival.why_not) is not survival.in_place


@settings(max_examples=50)
@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 3))
def test_only_losses_without_progress_run_out(gains: list[int], budget: int) -> None:
    """Losses with `gains` samples between them: as many without any as the budget has are survived."""
    samples, at_loss, failures = 100, None, 0
    for number, gain in enumerate(gains):
        samples += gain
        counted = counts_as_failure(samples, at_loss)
        assert counted is (number > 0 and gain == 0)
        survival = decide_survival(
            live=True,
            survivors=1,
            complete=True,
            fits=True,
            counted=counted,
            failures=failures,
            retry=Retry(infrastructure=budget),
        )
        failures += counted
        assert survival.in_place is (not counted or failures <= budget)
        at_loss = samples


def test_newcomers_are_left_alone_ever_longer() -> None:
    assert [growth_backoff_s(failures) for failures in (1, 2, 3, 7, 8, 10_000)] == [10, 20, 40, 600, 600, 600]


@pytest.mark.parametrize(
    ("exit_", "number"),
    [
        (ended(signal=9), 9),
        (ended(signal=35), 35),
        (ended(137), 9),
        (ended(134), 6),
        (ended(139), 11),
        (ended(135), 7),
        (ended(136), 8),
        (ended(132), 4),
        (ended(143), None),
        (ended(130), None),
        (ended(128), None),
        (ended(9), None),
        (ended(0), None),
        (ended(), None),
        (ended(1, signal=9), None),
    ],
)
def test_the_signal_that_ended_a_rank_or_the_program_in_its_shell(
    exit_: RankExit, number: int | None
) -> None:
    """A shell exits with 128 plus the number, but only a fatal signal says so: 143 is a stop, 130 an interrupt."""
    assert killed_by(exit_) == number


@pytest.mark.parametrize(
    ("exit_", "says"),
    [
        (ended(0), "exited with code 0"),
        (ended(255), "exited with code 255"),
        (ended(137), "was killed by SIGKILL (its shell exited with code 137)"),
        (ended(139), "was killed by SIGSEGV (its shell exited with code 139)"),
        (ended(signal=11), "was killed by SIGSEGV"),
        (ended(signal=63), "was killed by signal 63"),
        (replace(ended(signal=9), log_tail=(KILLED_FOR_MEMORY,)), "was killed by the kernel"),
        (replace(ended(137), log_tail=(KILLED_FOR_MEMORY,)), "was killed by the kernel"),
        (replace(ended(signal=11), log_tail=("MemoryError",)), "was killed by SIGSEGV"),
        (replace(ended(1), log_tail=("MemoryError",)), "exited with code 1"),
    ],
)
def test_how_each_rank_ended(exit_: RankExit, says: str) -> None:
    assert how_it_ended(exit_).startswith(says)


@pytest.mark.parametrize(
    ("line", "out_of_memory"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", True),
        ("RuntimeError: CUDA out of memory.", True),
        ("torch.cuda.OutOfMemoryError", True),
        ("MemoryError", True),
        ("MemoryError: Unable to allocate 8 GiB", True),
        (f"[headway] {KILLED_FOR_MEMORY}", True),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: 12 bytes", True),
        (" MemoryError", False),
        ("NotOutOfMemoryErrors", False),
        ("no space left on device", False),
        ("", False),
    ],
)
def test_which_output_says_that_memory_ran_out(line: str, *, out_of_memory: bool) -> None:
    exit_ = replace(ended(1), log_tail=("epoch 1", line, "bye"))
    assert ran_out_of_memory(exit_) is out_of_memory
    assert reason_of_loss(exit_) is (Reason.OUT_OF_MEMORY if out_of_memory else Reason.RANK_LOST)


@pytest.mark.parametrize(
    ("live", "survivors", "counted", "failures", "in_place"),
    [
        (True, 1, False, 0, True),
        (False, 1, False, 0, False),
        (True, 0, False, 0, False),
        (True, 1, True, 2, True),
        (True, 1, True, 3, False),
        (True, 1, False, 99, True),
    ],
)
def test_who_survives_a_loss(
    live: bool, survivors: int, counted: bool, failures: int, in_place: bool
) -> None:
    """Three infrastructure failures are allowed."""
    found = decide_survival(
        live=live,
        survivors=survivors,
        complete=True,
        fits=True,
        counted=counted,
        failures=failures,
        retry=Retry(infrastructure=3),
    )
    assert found.in_place is in_place


@pytest.mark.parametrize(
    ("samples", "at_loss", "counts"),
    [(100, None, False), (100, 100, True), (99, 100, True), (101, 100, False), (0, 0, True)],
)
def test_a_loss_counts_if_nothing_was_trained_since_the_last(
    samples: int, at_loss: int | None, *, counts: bool
) -> None:
    assert counts_as_failure(samples, at_loss) is counts
