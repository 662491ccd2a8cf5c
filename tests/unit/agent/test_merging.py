"""An agent says in fewer entries what it would have said in many: the service understands the same."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given

from headway.contract.agents import InterruptionKind, InterruptionNotice, RankEntry
from service.usecases import merging as of_service
from tests.unit.service.test_merging import AT, ended, entries, entry, progress
from worker_agent.merging import merged


@given(entries)
def test_the_service_understands_the_same(entries_: list[RankEntry]) -> None:
    fewer = [one for one in merged(entries_) if isinstance(one, RankEntry)]
    assert by_job(fewer) == by_job(entries_)
    assert len(fewer) == len(of_service.merged(of_service.heard(entries_)))


@given(entries)
def test_numbers_ascend_and_the_last_one_stays(entries_: list[RankEntry]) -> None:
    numbers = [one.sequence for one in merged(entries_)]
    assert numbers == sorted(set(numbers))
    assert numbers[-1:] == [one.sequence for one in entries_][-1:]


@given(entries)
def test_what_is_merged_stays_so(entries_: list[RankEntry]) -> None:
    once = merged(entries_)
    assert merged(once) == once


def test_what_is_about_the_node_comes_between_nothing() -> None:
    notice = InterruptionNotice(sequence=2, at=AT, what=InterruptionKind.REBALANCE, action="rebalance")
    found = merged([entry(1, "a", progress()), notice, entry(3, "a", progress())])
    assert [one.sequence for one in found] == [2, 3]


def test_messages_that_compare_ranks_stay_apart() -> None:
    compares = progress(rank_sample_s=(0.1, 0.2))
    assert len(merged([entry(number, "a", compares) for number in range(3)])) == 3


def test_an_end_comes_between_what_was_said_before_and_after() -> None:
    found = merged([entry(1, "a", progress()), ended(2, "a"), entry(3, "a", progress())])
    assert [one.sequence for one in found] == [1, 2, 3]


def by_job(news: list[RankEntry]) -> dict[str, list[object]]:
    """What the service makes of it, by job; numbers are compared apart."""
    said: dict[str, list[object]] = defaultdict(list)
    for one in of_service.merged(of_service.heard(news)):
        said[one.entry.job_id].append(
            (one.entry.kind, one.entry.generation, one.entry.sequence, one.training)
        )
    return said
