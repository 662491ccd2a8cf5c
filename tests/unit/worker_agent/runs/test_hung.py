"""When ranks count as hung: never while they step, always some time after they stopped to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.runtime import (
    Checkpointed,
    Completed,
    FirstStep,
    Hello,
    Left,
    Message,
    Metrics,
    Progress,
    StandsStill,
    Stopped,
)
from worker_agent.runs import hung
from worker_agent.runs.hung import AwakeClock, HangFinding, Limits, StepWatch, ThreadSample

LIMITS = Limits(after_s=10.0, factor=5.0, when_still=False)


def progress(step_s: float = 0.1, *, steps: int = 1, generation: int = 1, rank: int = 0) -> Progress:
    return Progress(
        rank=rank, generation=generation, at_s=0, epoch=0, samples=1, total_samples=None, steps=steps,
        step_s_sum=step_s * steps, step_s_squares=0, global_batch=1, local_batch=1, accumulation=1,
    )  # fmt: skip


def first_step(generation: int = 1, rank: int = 0) -> FirstStep:
    return FirstStep(rank=rank, generation=generation, at_s=0, samples=1)


def told(*messages: Message, at_s: float = 0.0, watch: StepWatch | None = None) -> StepWatch:
    watch = watch or StepWatch()
    for message in messages:
        watch = hung.after_message(watch, message, at_s)
    return watch


step_times = st.floats(0.001, 100)


@given(
    st.lists(step_times, min_size=1, max_size=100), st.floats(0, 1000), st.floats(1, 1000), st.floats(0, 50)
)
def test_hung_is_who_is_silent_for_longer_than_both_limits(
    steps: list[float], silent_s: float, after_s: float, factor: float
) -> None:
    limits = Limits(after_s=after_s, factor=factor, when_still=False)
    watch = told(*map(progress, steps), at_s=5.0)
    verdict = hung.silence(watch, limits, 5.0 + silent_s)
    usual = sorted(steps[-64:])
    middle = (usual[(len(usual) - 1) // 2] + usual[len(usual) // 2]) / 2
    assert watch.usual_s == pytest.approx(middle)
    waited_s = (5.0 + silent_s) - 5.0
    assert (verdict is not None) is (waited_s >= max(after_s, factor * watch.usual_s))
    if verdict is not None:
        assert (verdict.silent_s, verdict.usual_s) == (waited_s, watch.usual_s)


@given(st.lists(st.tuples(st.floats(0, 9.9), step_times), min_size=1, max_size=50))
def test_who_steps_in_time_is_never_hung(gaps: list[tuple[float, float]]) -> None:
    watch, now_s = told(first_step()), 0.0
    for gap_s, step_s in gaps:
        now_s += gap_s
        assert hung.silence(watch, LIMITS, now_s) is None
        watch = told(progress(step_s), at_s=now_s, watch=watch)


@pytest.mark.parametrize(
    "before", [[], [Hello(rank=0, generation=1, at_s=0)], [first_step(rank=1)], [progress(rank=1)]]
)
def test_nothing_counts_before_the_first_step_of_rank_0(before: list[Message]) -> None:
    watch = told(*before)
    assert hung.silence(watch, LIMITS, 1e9) is None
    assert hung.silence(told(first_step(), watch=watch), LIMITS, 10.0) is not None


@given(st.floats(0, 1000), st.floats(0, 1000))
def test_time_that_a_user_set_counts_from_the_start(start_s: float, silent_s: float) -> None:
    limits = Limits(after_s=100.0, factor=5.0, when_still=False, from_start=True)
    watch = StepWatch(alive_s=start_s)
    now_s = start_s + silent_s
    verdict = hung.silence(watch, limits, now_s)
    assert (verdict is not None) is (now_s - start_s >= 100.0)
    ordered = hung.after_order(watch, 2)
    assert hung.silence(ordered, limits, 1e9) is None


@pytest.mark.parametrize("last", [Completed, Stopped])
def test_nothing_counts_once_training_is_over(last: type[Completed | Stopped]) -> None:
    watch = told(progress(), last(rank=0, generation=1, at_s=0, samples=1))
    assert hung.silence(watch, LIMITS, 1e9) is None


def test_nothing_counts_between_an_order_and_the_first_step_of_its_members() -> None:
    watch = hung.after_order(told(progress(generation=3)), 4)
    assert hung.silence(watch, LIMITS, 1e9) is None
    watch = hung.after_order(watch, 2)
    assert hung.silence(watch, LIMITS, 1e9) is None, "a late order takes nothing back"
    watch = told(first_step(4), at_s=100.0, watch=watch)
    assert hung.silence(watch, LIMITS, 109.9) is None
    assert hung.silence(watch, LIMITS, 110.0) is not None


def test_a_rank_that_leaves_does_not_end_the_watch_of_those_that_stay() -> None:
    watch = hung.after_order(told(progress(generation=1)), 2)
    watch = told(Left(rank=0, generation=1, at_s=0, samples=1, joined=2), first_step(2), watch=watch)
    assert hung.silence(watch, LIMITS, 10.0) is not None


@pytest.mark.parametrize(
    "sign",
    [
        Metrics(rank=1, generation=1, at_s=0, epoch=0, samples=1, values={}),
        Checkpointed(rank=0, generation=1, at_s=0, uri="x", samples=1, size_bytes=1, save_s=1, total_s=1),
    ],
)
def test_whatever_a_rank_says_is_a_sign_of_life(sign: Message) -> None:
    watch = told(sign, at_s=8.0, watch=told(progress()))
    assert hung.silence(watch, LIMITS, 17.9) is None
    assert hung.silence(watch, LIMITS, 18.0) is not None


def test_a_silence_that_was_reported_counts_anew() -> None:
    watch = hung.restarted(told(progress()), 50.0)
    assert hung.silence(watch, LIMITS, 59.9) is None
    assert hung.silence(watch, LIMITS, 60.0) is not None


def test_output_counts_as_a_step_of_a_script_that_says_nothing_else() -> None:
    watch = hung.after_output(StepWatch(), 0, 1, 0.0)
    assert hung.silence(watch, LIMITS, 1e9) is None, "nothing counts before the first line"
    watch = hung.after_output(watch, 10, 1, 100.0)
    watch = hung.after_output(watch, 10, 1, 105.0)
    assert hung.silence(watch, LIMITS, 109.9) is None
    assert hung.silence(watch, LIMITS, 110.0) is not None
    quiet = hung.after_output(hung.after_own_output(watch, 500), 510, 1, 111.0)
    assert hung.silence(quiet, LIMITS, 111.0) is not None, "what the agent writes itself is no output"
    assert hung.silence(hung.after_output(watch, 511, 1, 111.0), LIMITS, 111.0) is None


@given(st.lists(st.floats(-10, 10_000), max_size=50))
def test_a_pause_of_the_agent_itself_hardly_counts(pauses: list[float]) -> None:
    """However long the host slept or the agent was stopped, and wherever the clock jumps."""
    clock, monotonic_s = AwakeClock(), 1000.0
    clock.tick(monotonic_s)
    for pause_s in pauses:
        before_s = clock.now_s
        monotonic_s += pause_s
        assert 0 <= clock.tick(monotonic_s) - before_s <= hung.MAX_TICK_S


@given(st.lists(st.floats(0, 1), max_size=50))
def test_awake_time_is_time(ticks: list[float]) -> None:
    clock, monotonic_s = AwakeClock(), 0.0
    clock.tick(monotonic_s)
    for tick_s in ticks:
        monotonic_s += tick_s
        clock.tick(monotonic_s)
    assert clock.now_s == pytest.approx(sum(ticks))


def looks_at(*stacks: str, cpu_s: float = 0.0) -> list[dict[int, ThreadSample]]:
    """StateMetrics five seconds apart at two ranks: one waits, the other is at these places and uses so much processor time."""
    return [
        {0: ThreadSample("wait", 1.0), 1: ThreadSample(one, number * cpu_s)}
        for number, one in enumerate(stacks)
    ]


@pytest.mark.parametrize(
    ("samples", "finding"),
    [
        (looks_at("a"), HangFinding.UNCLEAR),
        (looks_at(*"aaa"), HangFinding.UNCLEAR),
        (looks_at(*"aaaa"), HangFinding.HANGS),
        (looks_at(*"ab"), HangFinding.WORKS),
        (looks_at(*"aaab"), HangFinding.WORKS),
        (looks_at(*"aaaa", cpu_s=0.09), HangFinding.HANGS),
        (looks_at(*"aaaa", cpu_s=0.2), HangFinding.UNCLEAR),
        (looks_at(*"a" * 59, cpu_s=5.0), HangFinding.UNCLEAR),
        (looks_at(*"a" * 60, cpu_s=5.0), HangFinding.HANGS),
        (
            [{0: ThreadSample("a", 0.0), 1: ThreadSample("b", 0.0)}, {0: ThreadSample("a", 0.0)}],
            HangFinding.WORKS,
        ),
    ],
)
def test_who_moves_works_and_who_waits_hangs(
    samples: list[dict[int, ThreadSample]], finding: HangFinding
) -> None:
    """A busy one that does not move may be a loop around one long operation: it is looked at many times."""
    assert hung.judge(samples, 5.0) is finding


def test_only_the_latest_steps_are_remembered() -> None:
    watch = told(*[progress(100.0)] * 100, *[progress(0.1)] * 64)
    assert watch.usual_s == pytest.approx(0.1)
    assert replace(watch, steps_s=()).usual_s == 0


def test_a_reported_standstill_is_no_sign_of_training() -> None:
    watch = told(first_step(), progress(), at_s=5.0)
    stands = StandsStill(rank=0, generation=1, at_s=0, silent_s=15.0, usual_s=0.1)
    assert told(stands, at_s=8.0, watch=watch) == watch
