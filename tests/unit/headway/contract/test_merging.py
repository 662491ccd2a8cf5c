"""Messages of progress in one report, added up: fewer entries say the same."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headway.contract.agents import RankEntry, RankExited, RankMessage
from headway.contract.merging import ReportedEntry, merged, parsed
from headway.contract.runtime import Progress

AT = datetime(2026, 1, 1, tzinfo=UTC)
SUMS = ("steps", "step_s_sum", "step_s_squares", "sync_s_sum")


def progress(**changes: Any) -> Progress:
    fields: dict[str, Any] = {
        "rank": 0,
        "generation": 1,
        "at_s": 1.0,
        "epoch": 0,
        "samples": 0,
        "total_samples": 1000,
        "steps": 1,
        "step_s_sum": 0.5,
        "step_s_squares": 0.25,
        "global_batch": 8,
        "local_batch": 8,
        "accumulation": 1,
    }
    return Progress(**{**fields, **changes})


def entry(sequence: int, job: str, said: Progress) -> RankMessage:
    message = {**asdict(said), "type": Progress.TYPE, "local_batches": list(said.local_batches)}
    message["rank_sample_s"] = list(said.rank_sample_s)
    return RankMessage(sequence=sequence, job_id=job, generation=1, at=AT, rank=said.rank, message=message)


def ended(sequence: int, job: str) -> RankExited:
    return RankExited(sequence=sequence, job_id=job, generation=1, at=AT, rank=0, exit_code=0)


def said(news: list[ReportedEntry]) -> list[Progress]:
    return [one.training for one in news if isinstance(one.training, Progress)]


entries = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.booleans(),
        st.builds(
            progress,
            generation=st.integers(1, 2),
            global_batch=st.sampled_from([8, 16]),
            samples=st.integers(0, 99),
            steps=st.integers(0, 9),
            step_s_sum=st.integers(0, 9).map(float),
            gradient_sqr=st.none() | st.integers(1, 9).map(float),
        ),
    )
).map(
    lambda drawn: [
        ended(number, job) if ends else entry(number, job, one)
        for number, (job, ends, one) in enumerate(drawn)
    ]
)


@given(entries)
def test_nothing_is_lost_and_the_order_of_a_job_stays(entries_: list[RankEntry]) -> None:
    news = parsed(entries_)
    kept = merged(news)
    for job in ("a", "b"):
        of_job, kept_of_job = ([one for one in some if one.entry.job_id == job] for some in (news, kept))
        for batch in (8, 16):
            before, after = (
                [one for one in said(some) if one.global_batch == batch] for some in (of_job, kept_of_job)
            )
            for name in SUMS:
                assert sum(getattr(one, name) for one in before) == sum(getattr(one, name) for one in after)
        numbers = [one.entry.sequence for one in kept_of_job]
        assert numbers == sorted(set(numbers))
        assert numbers[-1:] == [one.entry.sequence for one in of_job][-1:]
        assert without_repeats(kinds(of_job)) == without_repeats(kinds(kept_of_job))
    assert merged(kept) == kept, "once is enough"
    assert parsed(one.entry for one in kept) == kept, "what is sent says the same"


def kinds(news: list[ReportedEntry]) -> list[Any]:
    return [
        (one.entry.kind, message.global_batch, message.generation)
        if isinstance(message := one.training, Progress)
        else (one.entry.kind, None, None)
        for one in news
    ]


def without_repeats(kinds: list[Any]) -> list[Any]:
    """Exits are never merged; messages that say the same in a row are one."""
    kept: list[Any] = []
    for one in kinds:
        if not kept or kept[-1] != one or one[0] != "rank_message":
            kept.append(one)
    return kept


def test_the_last_one_counts_in_everything_that_is_no_sum() -> None:
    first = progress(samples=8, gradient_sqr=3.0, at_s=1.0, step_s_sum=0.5, step_s_squares=0.25)
    second = progress(samples=24, steps=2, at_s=2.0, epoch=1, step_s_sum=2.0, step_s_squares=2.5)
    (both,) = said(merged(parsed([entry(1, "a", first), entry(2, "a", second)])))
    assert (both.samples, both.epoch, both.at_s, both.steps) == (24, 1, 2.0, 3)
    assert (both.step_s_sum, both.step_s_squares, both.gradient_sqr) == (2.5, 2.75, 3.0)


def test_messages_that_compare_ranks_stay_apart() -> None:
    slow = progress(rank_sample_s=(0.1, 0.5))
    assert len(merged(parsed(entry(number, "a", slow) for number in range(3)))) == 3


def test_an_end_comes_between_what_was_said_before_and_after() -> None:
    news = parsed([entry(1, "a", progress()), ended(2, "a"), entry(3, "a", progress())])
    assert merged(news) == news


def test_what_makes_no_sense_is_left_to_be_refused() -> None:
    good = entry(1, "a", progress())
    bad = good.model_copy(update={"message": {**good.message, "steps": "many"}})
    kept = merged(parsed([good, bad, good]))
    assert [one.entry for one in kept] == [good, bad, good]
    assert kept[1].training is None


def test_processes_are_told_apart() -> None:
    other = entry(2, "a", progress()).model_copy(update={"generation": 2})
    news = parsed([entry(1, "a", progress()), other])
    assert merged(news) == news
