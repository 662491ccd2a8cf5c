"""Rules of jobs that start after others."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.spec_after import AfterEnd
from headway.contract.views.jobs import TERMINAL_STATES, JobState, Reason
from service.domain.jobs.after import Chance, Predecessor, judge

ENDS = sorted(TERMINAL_STATES)
MEETS = {
    AfterEnd.SUCCEEDED: {JobState.SUCCEEDED},
    AfterEnd.FAILED: {JobState.FAILED},
    AfterEnd.ENDED: set(TERMINAL_STATES),
}


def predecessor(on: AfterEnd, ended: JobState | None, number: int = 0) -> Predecessor:
    reason = None if ended is None else Reason.COMPLETED
    return Predecessor(
        id=f"j{number}", key=f"job{number}", name=f"job{number}", on=on, ended=ended, reason=reason
    )


@pytest.mark.parametrize(("on", "ended"), list(product(AfterEnd, [*ENDS, None])))
def test_one_predecessor_releases_cancels_or_holds_by_its_end(on: AfterEnd, ended: JobState | None) -> None:
    chance = judge([predecessor(on, ended)]).chance
    if ended is None:
        assert chance is Chance.WAITS
    else:
        assert chance is (Chance.STARTS if ended in MEETS[on] else Chance.NEVER)


def test_message_names_the_job_that_decides_and_those_that_are_left() -> None:
    held = judge([predecessor(AfterEnd.SUCCEEDED, JobState.SUCCEEDED), predecessor(AfterEnd.ENDED, None, 1)])
    assert (held.chance, held.message) == (Chance.WAITS, "waits for the end of job1")
    never = judge([predecessor(AfterEnd.FAILED, JobState.SUCCEEDED), predecessor(AfterEnd.ENDED, None, 1)])
    assert never.chance is Chance.NEVER
    assert "job0, which is SUCCEEDED (COMPLETED)" in never.message


_edges = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from(list(AfterEnd))), max_size=4), max_size=12
)


@given(edges=_edges, data=st.data())
def test_every_job_of_a_random_chain_ends_in_any_order_of_ends(
    edges: list[list[tuple[int, AfterEnd]]], data: st.DataObject
) -> None:
    """A job waits only for earlier ones, as a submit makes sure. No job waits for ever, and each starts only as wanted."""
    after = [{number % job: on for number, on in wanted} if job else {} for job, wanted in enumerate(edges)]
    ends: dict[int, JobState] = {}
    started: set[int] = set()

    def verdict(job: int) -> Chance:
        return judge([predecessor(on, ends.get(one), one) for one, on in after[job].items()]).chance

    def settle() -> None:
        while True:
            open_ = [job for job in range(len(after)) if job not in ends and job not in started]
            moved = False
            for job in open_:
                chance = verdict(job) if after[job] else Chance.STARTS
                if chance is Chance.NEVER:
                    ends[job] = JobState.CANCELLED
                elif chance is Chance.STARTS:
                    started.add(job)
                moved = moved or chance is not Chance.WAITS
            if not moved:
                return

    settle()
    while running := sorted(started - ends.keys()):
        ends[data.draw(st.sampled_from(running))] = data.draw(st.sampled_from(ENDS))
        settle()
    assert len(ends) == len(after)
    for job, wanted in enumerate(after):
        if job in started:
            assert all(ends[one] in MEETS[on] for one, on in wanted.items())
        else:
            assert any(ends[one] not in MEETS[on] for one, on in wanted.items())
