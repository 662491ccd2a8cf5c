"""Messages of progress in one report, added up."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headway.contract.agents import RankEntry, RankExited, RankMessage
from headway.contract.runtime import Progress, from_fields
from service.usecases.merging import merged

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


def said(entries: list[RankEntry]) -> list[Progress]:
    messages = [from_fields(one.message) for one in entries if isinstance(one, RankMessage)]
    return [one for one in messages if isinstance(one, Progress)]


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
def test_nothing_is_lost_and_the_order_of_a_job_stays(news: list[RankEntry]) -> None:
    kept = merged(news)
    for job in ("a", "b"):
        for batch in (8, 16):
            before, after = (
                [one for one in said([e for e in some if e.job_id == job]) if one.global_batch == batch]
                for some in (news, kept)
            )
            for name in SUMS:
                assert sum(getattr(one, name) for one in before) == sum(getattr(one, name) for one in after)
        last = [e for e in news if e.job_id == job][-1:]
        assert [e.sequence for e in kept if e.job_id == job][-1:] == [e.sequence for e in last]
        kinds = [(e.kind, batch_of(e)) for e in kept if e.job_id == job]
        assert without_repeats([(e.kind, batch_of(e)) for e in news if e.job_id == job]) == without_repeats(
            kinds
        )
    assert merged(kept) == kept, "once is enough"


def batch_of(one: RankEntry) -> tuple[Any, Any]:
    message = one.message if isinstance(one, RankMessage) else {}
    return message.get("global_batch"), message.get("generation")


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
    (both,) = said(merged([entry(1, "a", first), entry(2, "a", second)]))
    assert (both.samples, both.epoch, both.at_s, both.steps) == (24, 1, 2.0, 3)
    assert (both.step_s_sum, both.step_s_squares, both.gradient_sqr) == (2.5, 2.75, 3.0)


def test_messages_that_compare_ranks_stay_apart() -> None:
    slow = progress(rank_sample_s=(0.1, 0.5))
    assert len(merged([entry(number, "a", slow) for number in range(3)])) == 3


def test_what_makes_no_sense_is_left_to_be_refused() -> None:
    good = entry(1, "a", progress())
    bad = good.model_copy(update={"message": {**good.message, "steps": "many"}})
    assert merged([good, bad, good]) == [good, bad, good]


def test_processes_are_told_apart() -> None:
    other = entry(2, "a", progress()).model_copy(update={"generation": 2})
    news = [entry(1, "a", progress()), other]
    assert merged(news) == news
