"""Ranks live on or end as they should when the agent, its launcher, the service or Redis fail."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import worker_agent
from headway.contract.agents import RanksStarted, Released
from tests.integration.agent.looking import alive, launchers, wait_until
from tests.integration.agent.stub import JOIN_TOKEN, AgentProcess, StubService

MakeAgent = Callable[..., AgentProcess]

COUNTER = """
import json, os, signal, sys, threading
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
rank = int(os.environ["RANK"])
control = open(os.environ["HEADWAY_CONTROL"] + f"/rank-{rank}.jsonl", "a")
print("pid", os.getpid(), flush=True)
n = 0
while not stopped and not os.path.exists(f"finish-{rank}"):
    n += 1
    threading.Event().wait(0.01)
    print("line", n, flush=True)
    fields = {"type": "first_step", "rank": rank, "generation": 1, "at_s": 1.0, "samples": n}
    control.write(json.dumps(fields) + "\\n")
    control.flush()
print("last", n, flush=True)
sys.exit(143 if stopped else 5 if rank else 0)
"""


def _pid(log: str) -> int:
    return int(next(line for line in log.splitlines() if line.startswith("pid")).split()[1])


def _start_counter(stub: StubService, job: str, ranks: int = 2) -> list[int]:
    """Start the counting script; the pids of its ranks."""
    stub.wait_for(lambda: stub.reports)
    stub.run(job, "python train.py", ranks=ranks, bundle=stub.add_bundle({"train.py": COUNTER}))
    return [_pid(stub.wait_log(job, "line 5", rank)) for rank in range(ranks)]


def shorten_lease(stub: StubService, lease_s: float) -> None:
    """Only once the ranks run, so that no start is too slow for it. Returns when the agent knows."""
    with stub.changed:
        stub.lease_s = lease_s
        told = len(stub.reports)
    stub.wait_for(lambda: len(stub.reports) > told + 1)


@pytest.mark.slow
def test_a_killed_agent_comes_back_to_its_ranks(
    stub: StubService, make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = make_agent()
    agent.start()
    pids = _start_counter(stub, "job")
    before = launchers(tmp_path / "state")

    agent.kill()
    assert all(alive(pid) for pid in pids)
    (tmp_path / "state/runs/job/work/finish-0").touch()  # ends while no agent is there to see it
    wait_until(lambda: not alive(pids[0]))
    seen = len(stub.messages("job"))
    agent.start()

    stub.wait_for(lambda: len(stub.joins) == 2)
    assert stub.joins[0].instance == stub.joins[1].instance
    assert stub.joins[0].first_port == stub.joins[1].first_port
    stub.wait_for(lambda: len(stub.messages("job")) > seen + 100)
    assert launchers(tmp_path / "state") == before
    assert alive(pids[1])
    stub.send_stop("job")
    exits = stub.exits("job")
    assert (exits[0].exit_code, exits[0].stopped_by_agent) == (0, False)
    assert (exits[1].exit_code, exits[1].stopped_by_agent) == (143, True)
    assert len(stub.of("job", RanksStarted)) == 1
    for rank in (0, 1):
        *lines, last = stub.wait_log("job", "last", rank).splitlines()[1:]
        count = int(last.split()[1])
        assert lines == [f"line {n}" for n in range(1, count + 1)]
        samples = [m["samples"] for m in stub.messages("job") if m["rank"] == rank]
        assert samples == list(range(1, count + 1)), "every message once, in order"
    sequences = [entry.sequence for report in stub.reports for entry in report.entries]
    assert sorted(set(sequences)) == [entry.sequence for entry in stub.entries]


@pytest.mark.slow
def test_a_command_of_the_time_without_an_agent_is_taken_up(stub: StubService, make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent.start()
    _start_counter(stub, "job", ranks=1)
    agent.kill()
    stub.send_stop("job")
    agent.start()
    assert stub.exits("job")[0].exit_code == 143


@pytest.mark.slow
def test_an_agent_that_ends_leaves_its_ranks(stub: StubService, make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent.start()
    pids = _start_counter(stub, "job", ranks=1)
    assert agent.end() == 0
    assert alive(pids[0])


@pytest.mark.slow
def test_an_agent_that_owns_its_jobs_takes_them_along(
    stub: StubService, make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = make_agent("--own-jobs")
    agent.start()
    pids = _start_counter(stub, "job")
    kept = launchers(tmp_path / "state")
    assert agent.end() == 0
    assert {end.exit_code for end in stub.exits("job").values()} == {143}
    assert not any(alive(pid) for pid in pids)
    wait_until(lambda: not any(alive(pid) for pid in kept))


@pytest.mark.slow
def test_ranks_die_with_a_shortened_lease_even_without_an_agent(
    stub: StubService, make_agent: MakeAgent
) -> None:
    stub.report_every_s, stub.lease_s = 0.3, 3600.0
    agent = make_agent()
    agent.start()
    pids = _start_counter(stub, "job")
    shorten_lease(stub, 2.0)
    agent.kill()
    wait_until(lambda: not any(alive(pid) for pid in pids))
    agent.start()
    assert {(end.signal, end.stopped_by_agent) for end in stub.exits("job").values()} == {(9, True)}


@pytest.mark.slow
def test_ranks_die_with_the_lease_when_the_service_is_away_and_work_goes_on_after(
    stub: StubService, make_agent: MakeAgent
) -> None:
    stub.report_every_s = 0.3
    agent = make_agent()
    agent.start()
    pids = _start_counter(stub, "job")
    shorten_lease(stub, 1.5)
    stub.answering = False
    wait_until(lambda: not any(alive(pid) for pid in pids))
    stub.lease_s = 30.0
    stub.answering = True
    assert {end.signal for end in stub.exits("job").values()} == {9}
    stub.run("next", "true")
    assert stub.exits("next")[0].exit_code == 0


@pytest.mark.slow
def test_a_short_absence_of_the_service_costs_nothing(stub: StubService, make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent.start()
    _start_counter(stub, "job", ranks=1)
    stub.answering = False
    wait_until(lambda: "the service is unavailable" in agent.log())
    stub.answering = True
    before = len(stub.messages("job"))
    stub.wait_for(lambda: len(stub.messages("job")) > before + 50)
    samples = [message["samples"] for message in stub.messages("job")]
    assert samples == list(range(1, len(samples) + 1))


@pytest.mark.slow
def test_a_lost_launcher_loses_its_ranks_and_is_replaced(
    stub: StubService, make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = make_agent()
    agent.start()
    pids = _start_counter(stub, "job")
    for pid in launchers(tmp_path / "state"):
        os.kill(pid, signal.SIGKILL)
    exits = stub.exits("job")
    assert {(end.exit_code, end.signal, end.stopped_by_agent) for end in exits.values()} == {
        (None, None, False)
    }
    assert not any(alive(pid) for pid in pids)
    stub.run("job", "true", generation=2)
    assert stub.exits("job", 2)[0].exit_code == 0


@pytest.mark.slow
def test_an_upgrade_under_a_running_agent_does_not_keep_it_from_working(
    stub: StubService, make_agent: MakeAgent, tmp_path: Path
) -> None:
    installed = tmp_path / "site-packages" / "worker_agent"
    shutil.copytree(Path(worker_agent.__file__).parent, installed)
    agent = make_agent()
    agent.imports = installed.parent
    agent.start()
    stub.wait_for(lambda: stub.joins)
    stub.run("before", "true")
    assert stub.exits("before")[0].exit_code == 0
    (before,) = launchers(tmp_path / "state")
    with (installed / "ports.py").open("a") as file:
        file.write("# a newer version\n")
    os.kill(before, signal.SIGKILL)
    stub.run("after", "true")
    assert stub.exits("after")[0].exit_code == 0


@pytest.mark.slow
def test_a_forgotten_node_joins_again(stub: StubService, make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent.start()
    pids = _start_counter(stub, "job", ranks=1)
    stub.node_token = "another-token"
    stub.stream = f"{stub.stream}-2"
    stub.wait_for(lambda: len(stub.joins) == 2)
    stub.send_stop("job")
    assert stub.exits("job")[0].exit_code == 143
    assert not alive(pids[0])


@pytest.mark.slow
def test_an_agent_waits_for_a_service_that_is_not_there_yet(stub: StubService, make_agent: MakeAgent) -> None:
    stub.answering = False
    agent = make_agent()
    agent.start()
    wait_until(lambda: "the service is unavailable" in agent.log())
    stub.answering = True
    stub.wait_for(lambda: stub.reports)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "refusal", "message"),
    [("wrong", None, "Check --token"), (JOIN_TOKEN, (409, "node-a has another agent"), "another --name")],
)
def test_a_refused_agent_says_why_and_ends(
    stub: StubService, make_agent: MakeAgent, token: str, refusal: tuple[int, str] | None, message: str
) -> None:
    stub.refuse_join = refusal
    agent = make_agent(token=token)
    agent.start()
    assert agent.wait() == 78
    assert message in agent.log()


@pytest.mark.slow
def test_two_agents_cannot_share_a_folder(stub: StubService, make_agent: MakeAgent) -> None:
    first = make_agent()
    first.start()
    stub.wait_for(lambda: stub.joins)
    second = make_agent()
    second.start()
    assert second.wait() == 78
    assert "--state-dir" in second.log()


@pytest.mark.slow
def test_a_run_that_is_refused_is_released(shared: StubService) -> None:
    """A service whose database was restored from a backup counts generations again from there."""
    shared.run("restored", "true", generation=5)
    assert shared.released("restored", generation=5)
    shared.run("restored", "true", generation=3)
    assert shared.released("restored", generation=3)
    assert not shared.of("restored", RanksStarted, generation=3)


def test_a_stop_of_a_newer_generation_is_answered_for_both(shared: StubService) -> None:
    shared.run("both", "sleep 600")
    shared.started("both")
    shared.send_stop("both", generation=3, mode="kill")
    assert shared.released("both", generation=3)
    assert shared.of("both", Released, 1), "who asked waits for the one, its slots are held for the other"
