"""Several schedulers and APIs over one database: whoever stops, is killed or cut off, another one goes on."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, JobState
from headway.local.ports import HOST, free_port
from headway.local.supervisor import Program
from tests.chaos.conftest import PatientJob
from tests.e2e.conftest import Cluster

pytestmark = pytest.mark.timeout(600)
TAKEN_OVER_WITHIN_S = 90.0
"""A standby leads after 12 s or so; the machine that tests run on may be busy."""


@dataclass
class Replicas:
    """A cluster with more of its service's processes than one of each."""

    cluster: Cluster
    started: dict[str, Program] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return self.cluster.stack.programs["scheduler"]._env

    def run(self, name: str, argv: list[str], env: dict[str, str]) -> Program:
        log = self.cluster.stack.logs / f"{name}.log"
        program = Program([sys.executable, "-u", "-m", *argv], env, log, grace_s=60.0)
        program.start()
        self.started[name] = program
        return program

    def scheduler(self, name: str) -> Program:
        """One more of them, which stands by: it starts when the stack's own leads, else they would race for the lead."""
        own = self.cluster.stack.programs["scheduler"]
        self.cluster.until(lambda: "leading" in own.log.read_text(), "the stack's scheduler to lead")
        program = self.run(name, ["service", "scheduler"], self.env)
        self.cluster.until(lambda: "waiting_to_lead" in program.log.read_text(), f"{name} to stand by")
        return program

    def ask(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""

        async def fetch() -> list[tuple[Any, ...]]:
            connection = await asyncpg.connect(self.env["HEADWAY_DATABASE_URL"])
            try:
                return [tuple(row) for row in await connection.fetch(query, *arguments)]
            finally:
                await connection.close()

        return asyncio.run(fetch())

    def leader(self) -> tuple[int, int]:
        """The term, and the process id of who leads in it."""
        ((term, holder),) = self.ask("SELECT term, holder FROM leadership")
        return term, int(holder.split()[-2])

    def await_another_leader(self, than: int) -> int:
        self.cluster.until(lambda: self.leader()[1] != than, "another scheduler to lead")
        return self.leader()[1]

    def train_a_bit(self, name: str) -> None:
        """A job that somebody has to start."""
        spec = JobSpec.model_validate({"name": name, "run": "python -c 'print(1)'", "elastic": {"max": 1}})
        job = self.cluster.client.submit(spec).id
        self.cluster.until(lambda: self.cluster.client.job(job).state in TERMINAL_STATES, f"{name} to end")
        ended = self.cluster.client.job(job)
        assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 1), ended.message


@pytest.fixture
def replicas(cluster: Cluster) -> Iterator[Replicas]:
    made = Replicas(cluster)
    yield made
    for program in made.started.values():
        if program.pid is not None and program.alive():
            os.kill(program.pid, signal.SIGCONT)
    for program in reversed(made.started.values()):
        program.stop()


@pytest.mark.slow
def test_a_leader_that_stops_and_wakes_does_no_harm(replicas: Replicas, patient: PatientJob) -> None:
    standby = replicas.scheduler("standby")
    patient.start(2, most=2)
    term, first = replicas.leader()
    log = replicas.cluster.stack.programs["scheduler"].log
    assert first == replicas.cluster.stack.programs["scheduler"].pid
    os.kill(first, signal.SIGSTOP)
    said_before, stopped_s = log.stat().st_size, time.monotonic()
    try:
        assert replicas.await_another_leader(first) == standby.pid
        assert time.monotonic() - stopped_s < TAKEN_OVER_WITHIN_S
        replicas.train_a_bit("while-it-stands-still")
    finally:
        os.kill(first, signal.SIGCONT)
    replicas.cluster.until(lambda: "waiting_to_lead" in tail(log, said_before), "it to stand by")
    replicas.train_a_bit("after-it-woke")
    said = tail(log, said_before)
    assert "leadership_lost" in said
    for deed in ("delivered", "applied=1", "nodes_lost", "retained"):
        assert deed not in said, said
    assert replicas.leader() == (term + 1, standby.pid)
    done = patient.finish()
    assert (done.attempt, done.infrastructure_failures) == (1, 0)


def tail(log: Path, start: int) -> str:
    with log.open() as file:
        file.seek(start)
        return file.read()


@pytest.mark.slow
def test_every_connection_to_the_database_is_cut(replicas: Replicas, patient: PatientJob) -> None:
    replicas.scheduler("second")
    patient.start(2, most=2)
    before, _ = replicas.leader()
    for _ in range(3):
        replicas.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    replicas.cluster.until(lambda: replicas.leader()[0] > before, "somebody to lead")
    replicas.train_a_bit("after-the-cut")
    of_the_stack = [node for node in replicas.cluster.client.nodes() if node.name.startswith("local-")]
    assert {node.state for node in of_the_stack} == {NodeState.READY}
    done = patient.finish()
    assert (done.attempt, done.infrastructure_failures) == (1, 0)


class EachInTurn(httpx.BaseTransport):
    """A stand-in for a load balancer: every request goes to the next API."""

    def __init__(self, *ports: int) -> None:
        self._ports = itertools.cycle(ports)
        self._network = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(port=next(self._ports))
        return self._network.handle_request(request)

    def close(self) -> None:
        self._network.close()


@pytest.mark.slow  # the fault run has two of each as well
def test_two_of_each(replicas: Replicas, patient: PatientJob) -> None:
    """Two APIs, with agents that report to the one or the other, two schedulers, of which the leader is killed, and a client
    that talks to both APIs in turn.
    """
    cluster, port = replicas.cluster, free_port()
    replicas.run("api-2", ["service", "api"], {**replicas.env, "HEADWAY_PORT": str(port)})
    other_url = f"http://{HOST}:{port}"
    agent = ["worker_agent", "--url", other_url, "--name", "far", "--address", HOST, "--own-jobs"]
    agent += ["--state-dir", str(cluster.stack.data / "agents" / "far"), "--slots", "2"]
    join_token = replicas.env["HEADWAY_JOIN_TOKEN"]
    with Client(other_url, cluster.stack.token, patience_s=60) as other:
        cluster.until(other.ready, "the second API to answer")
    kept = ("PATH", "HOME", "HEADWAY_ISOLATION")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment["HEADWAY_JOIN_TOKEN"] = join_token
    replicas.run("agent-far", agent, environment)
    replicas.scheduler("scheduler-2")
    first_port = int(cluster.stack.url.rpartition(":")[2])
    both = EachInTurn(first_port, port)
    with Client(cluster.stack.url, cluster.stack.token, patience_s=60, transport=both) as client:
        cluster.until(
            lambda: {node.name for node in client.nodes() if node.state is NodeState.READY} >= {"far"},
            "the agent of the second API to join",
        )
        patient.cluster = Cluster(cluster.stack, client)
        patient.start(6, most=6)
        ids = {
            client.submit(JobSpec(name="once", run="true"), idempotency_key="one-key").id for _ in range(4)
        }
        assert len(ids) == 1
        term, leader = replicas.leader()
        os.kill(leader, signal.SIGKILL)
        replicas.await_another_leader(leader)
        assert replicas.leader()[0] > term
        patient.resize(3)
        cluster.until(lambda: patient.runs_at(3), "a smaller size")
        kinds = [[event.kind for event in client.events(patient.id)] for _ in range(2)]
        assert kinds[0][: len(kinds[1])] == kinds[1][: len(kinds[0])]
        done = patient.finish()
        assert (done.attempt, done.infrastructure_failures) == (1, 0)
        assert [event.kind for event in client.events(patient.id)].count("succeed") == 1
        client.drain("far")
        cluster.until(
            lambda: next(one for one in client.nodes() if one.name == "far").state is NodeState.DRAINED,
            "the second API's agent to be empty",
        )
