"""A node dies with its agent and all its ranks: those on other nodes go on, and it is used again when it is back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.views.jobs import Reason
from headway.local.stack import LocalStack
from tests.e2e.conftest import PATIENCE_S, Cluster, PatientJob
from tests.integration.agent.looking import launchers

HERE, THERE = "local-1", "other-host"
SILENCE_S = 6.0
"""After which a node counts as lost: short for a test, long enough for a busy machine."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Headway with one agent that soon takes a silent node for lost."""
    data = tmp_path_factory.mktemp("lost-node")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HEADWAY_SILENCE_S", str(SILENCE_S))
        stack = LocalStack(data, agents=1, slots=2)
        with stack, Client(stack.url, stack.token, patience_s=60) as client:
            yield Cluster(stack, client)


@dataclass
class OtherHost:
    """A second agent, which nobody starts again when it dies."""

    cluster: Cluster
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of the agent, beside what every agent has."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> Path:
        return self.cluster.stack.data / "agents" / THERE

    def start(self) -> None:
        """Start its agent, and wait until its node takes jobs."""
        stack = self.cluster.stack
        flags = f"--own-jobs --address 127.0.0.1 --slots 2 --name {THERE} --url {stack.url}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "worker_agent", *flags.split(), "--state-dir", str(self.state)],
            env={**os.environ, **self.env, "HEADWAY_JOIN_TOKEN": stack.join_token_file.read_text().strip()},
            stderr=subprocess.DEVNULL,
        )
        self._until(NodeState.READY)

    def die(self) -> None:
        """Power off: agent, launcher and ranks end at once."""
        assert self.process is not None
        self.process.kill()
        for pid in launchers(self.state):  # whose ranks die with it
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End it, and wait until the service knows."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self._until(NodeState.LOST)

    def _until(self, state: NodeState) -> None:
        self.cluster.until(
            lambda: (THERE, state) in {(node.name, node.state) for node in self.cluster.client.nodes()},
            f"{THERE} to be {state}",
        )


@pytest.fixture
def other(cluster: Cluster) -> Iterator[OtherHost]:
    host = OtherHost(cluster)
    host.start()
    yield host
    host.stop()


@pytest.mark.parametrize("first", [pytest.param(HERE, marks=pytest.mark.slow), THERE])
def test_the_ranks_elsewhere_go_on(patient: PatientJob, other: OtherHost, first: str) -> None:
    """`first` is the node where rank 0 is."""
    client = patient.cluster.client
    (second,) = {HERE, THERE} - {first}
    client.cordon(second)
    patient.start(2, most=4)
    client.uncordon(second)
    patient.next_event("switch", lambda: patient.resize(4))
    lost = patient.next_event("switch", other.die)
    assert "continues with 2 of 4 slots after a loss: paused " in lost.message
    assert lost.data["lost_steps"] <= 1
    (loss,) = patient.events("lose")
    assert loss.reason is Reason.NODE_LOST
    assert "2 of 4 ranks go on in place" in loss.message
    assert list(patient.view().allocation) == [HERE]
    grown = patient.next_event("switch", other.start)
    assert (grown.data["from"], grown.data["to"]) == (2, 4), "the node is used again when it is back"
    done = patient.finish()
    assert (done.attempt, done.infrastructure_failures, done.progress.lost_samples) == (1, 0, 0)
