"""A live job whose agent, or its launcher, dies in each phase of a change of members."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.contract.agents import RankMessage, RanksStarted, Released
from tests.integration.agent.looking import alive, launchers, wait_until
from tests.integration.agent.stub import AgentProcess, StubService
from tests.integration.agent.test_agent_life import shorten_lease
from tests.integration.agent.test_live import LiveJob

MakeAgent = Callable[..., AgentProcess]


@pytest.fixture
def agent(stub: StubService, make_agent: MakeAgent) -> AgentProcess:
    """An agent of four slots that runs."""
    made = make_agent(slots=4)
    made.start()
    stub.wait_for(lambda: stub.reports)
    return made


def _grow(stub: StubService) -> tuple[LiveJob, dict[int, list[int]], dict[int, list[int]]]:
    """A job of two ranks, and a newcomer that waits to join; their pids."""
    job = LiveJob(stub, "job")
    return job, job.start(1, {0: 0, 1: 1}), job.start(2, {2: 2}, joins=True)


def _each_once(stub: StubService) -> None:
    """Nothing was told twice."""
    told = [
        (one.generation, one.rank, one.message["type"], one.message["generation"])
        for one in stub.of("job", RankMessage)
    ]
    assert len(told) == len(set(told))
    slots = [(one.generation, slot) for one in stub.of("job", Released) for slot in one.slots or ()]
    assert len(slots) == len(set(slots))


@pytest.mark.slow
def test_an_agent_that_dies_while_newcomers_prepare(stub: StubService, agent: AgentProcess) -> None:
    job, old, new = _grow(stub)
    agent.kill()
    order = job.order(2, (1, 0), (2, 2))  # waits in the stream
    agent.start()
    stub.acknowledged(order)
    job.wait_switched(2, (1, 0, 0), (2, 2, 1))
    stub.wait_for(lambda: job.slots_released(1) == [1])
    assert [alive(pids[0]) for pids in (old[0], old[1], new[2])] == [True, False, True]
    assert len(stub.of("job", RanksStarted)) == 2
    job.end(2)
    _each_once(stub)


@pytest.mark.slow
def test_a_newcomer_of_the_time_without_an_agent_joins(stub: StubService, agent: AgentProcess) -> None:
    job = LiveJob(stub, "job")
    job.start(1, {0: 0})
    agent.kill()
    newcomer = stub.run_command("job", "true", generation=2, slots={1: 1}, live=True, joins=True)
    stub.push(newcomer.model_copy(update={"hosts_store": False, "run": "sleep 600"}))
    agent.start()
    stub.started("job", 2)
    assert alive(job.pids(1, 0)[0])
    job.end(2)


@pytest.mark.slow
def test_an_agent_that_dies_between_the_order_and_the_end_of_a_leaver(
    stub: StubService, agent: AgentProcess, tmp_path: Path
) -> None:
    job, old, new = _grow(stub)
    job.order(2, (1, 0), (1, 1), (2, 2))
    job.wait_switched(2, (1, 0, 0), (1, 1, 1), (2, 2, 2))
    agent.kill()
    os.kill(old[0][0], signal.SIGKILL)  # ends while no agent is there to see it
    gone = tmp_path / "state/runs/job/1/rank-0.gone"
    wait_until(gone.exists)
    assert not alive(old[0][1])
    agent.start()
    stub.wait_for(lambda: job.slots_released(1) == [0])
    end = job.exits(1)[0]
    assert (end.signal, end.stopped_by_agent) == (signal.SIGKILL, False)
    job.order(3, (1, 1), (2, 2), lost=True)
    job.wait_switched(3, (1, 1, 0), (2, 2, 1))
    assert alive(old[1][0])
    assert alive(new[2][0])
    job.end(3)
    _each_once(stub)


@pytest.mark.slow
def test_an_agent_that_dies_after_a_slot_was_released(stub: StubService, agent: AgentProcess) -> None:
    job, old, new = _grow(stub)
    job.order(2, (1, 0), (2, 2))
    stub.wait_for(lambda: job.slots_released(1) == [1])
    told = len(stub.reports)
    stub.wait_for(lambda: len(stub.reports) > told)  # it has the answer: what it has said is not said again
    agent.kill()
    agent.start()
    stub.wait_for(lambda: len(stub.joins) == 2)
    newest = job.start(3, {3: 1}, joins=True)
    job.order(3, (1, 0), (2, 2), (3, 3))
    job.wait_switched(3, (1, 0, 0), (2, 2, 1), (3, 3, 2))
    assert all(alive(pid) for pid in (*old[0], *new[2], *newest[3]))
    assert len(stub.of("job", RanksStarted)) == 3, "what was released is free for a newcomer"
    job.end(3)
    _each_once(stub)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["preparing", "ordered", "left"])
def test_a_launcher_that_dies_takes_the_ranks_and_all_of_them_are_accounted_for(
    stub: StubService, agent: AgentProcess, tmp_path: Path, phase: str
) -> None:
    job, old, new = _grow(stub)
    if phase == "ordered":
        job.order(2, (1, 0), (1, 1), (2, 2))
        job.wait_switched(2, (1, 0, 0), (1, 1, 1), (2, 2, 2))
    elif phase == "left":
        job.order(2, (1, 0), (2, 2))
        stub.wait_for(lambda: job.slots_released(1) == [1])
    for pid in launchers(tmp_path / "state"):
        os.kill(pid, signal.SIGKILL)
    job.wait_released(1)
    stub.wait_for(lambda: job.wholly_released(2) or 2 in job.slots_released(2))
    assert not any(alive(pid) for pids in (*old.values(), *new.values()) for pid in pids)
    ends = {**job.exits(1), **job.exits(2)}
    left = {1} if phase == "left" else set()
    assert {rank for rank, end in ends.items() if end.exit_code is None and end.signal is None} == {
        0,
        1,
        2,
    } - left
    assert sorted(job.exits(1)) == [0, 1]
    _each_once(stub)
    stub.run("job", "true", generation=3)
    assert stub.exits("job", 3)[0].exit_code == 0


@pytest.mark.slow
def test_ranks_of_all_runs_die_with_the_lease(stub: StubService, agent: AgentProcess) -> None:
    job, old, new = _grow(stub)
    shorten_lease(stub, 2.0)
    agent.kill()
    wait_until(lambda: not any(alive(pid) for pids in (*old.values(), *new.values()) for pid in pids))
    agent.start()
    stub.wait_for(lambda: set(job.exits(1)) | set(job.exits(2)) == {0, 1, 2})
    assert all(end.stopped_by_agent for end in (*job.exits(1).values(), *job.exits(2).values()))
