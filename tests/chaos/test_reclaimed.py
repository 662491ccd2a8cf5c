"""A spot machine is taken away with notice: what runs there leaves in time, and loses nothing."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.views.jobs import TERMINAL_STATES, JobState, Reason
from headway.local.stack import LocalStack
from tests.chaos.test_lost_node import HERE, SILENCE_S, THERE, OtherHost
from tests.e2e.conftest import Cluster, PatientJob, living_ranks
from tests.fake_metadata import FakeMetadata

NOTICE_S = 120.0
"""As much as EC2 gives. The agent stops by itself what is still there when the grace of its job is left."""
SHORT_NOTICE_S = 30.0
"""Half of it is the service's."""
pytestmark = pytest.mark.timeout(600)  # a notice has to run out, beside all that is started


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Headway with one agent of two slots, which stays."""
    data = tmp_path_factory.mktemp("reclaimed")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HEADWAY_SILENCE_S", str(SILENCE_S))
        stack = LocalStack(data, agents=1, slots=2)
        with stack, Client(stack.url, stack.token, patience_s=60) as client:
            yield Cluster(stack, client)


@pytest.fixture
def provider() -> Iterator[FakeMetadata]:
    with FakeMetadata() as provider:
        yield provider


@pytest.fixture
def spot(cluster: Cluster, provider: FakeMetadata) -> Iterator[OtherHost]:
    """A second node with two slots, on a machine that its provider may take away."""
    host = OtherHost(cluster, {"HEADWAY_METADATA_URL": provider.url})
    host.start()
    yield host
    if host.process is not None and host.process.poll() is None:
        host.die()
    cluster.until(lambda: state_of(cluster, THERE) is NodeState.LOST, "the machine to be gone")
    shutil.rmtree(host.state)  # the next one of this name is another machine


def state_of(cluster: Cluster, name: str) -> NodeState:
    return next(node.state for node in cluster.client.nodes() if node.name == name)


def until_drained(cluster: Cluster, deadline: datetime) -> None:
    """The node is empty, while its machine is still there."""
    cluster.until(lambda: state_of(cluster, THERE) is NodeState.DRAINED, "the node to be empty")
    assert datetime.now(UTC) < deadline


@pytest.mark.slow
def test_a_live_job_leaves_in_place(patient: PatientJob, spot: OtherHost, provider: FakeMetadata) -> None:
    cluster = patient.cluster
    patient.start(4, most=4)
    cluster.client.resize(patient.id, None)
    deadlines: list[datetime] = []
    left = patient.next_event("switch", lambda: deadlines.append(provider.take_away(NOTICE_S)))
    assert (left.data["from"], left.data["lost_steps"]) == (4, 0)
    until_drained(cluster, deadlines[0])
    (told,) = patient.events("interruption")
    assert (told.reason, told.data["node"]) == (Reason.SPOT_RECLAIMED, THERE)
    patient.resize(2)
    cluster.until(lambda: patient.runs_at(2), "all of what stays")
    switches = len(patient.events("switch"))
    spot.die()
    cluster.until(lambda: state_of(cluster, THERE) is NodeState.LOST, "the machine to be gone")
    trained = patient.view().progress.samples
    cluster.until(lambda: patient.view().progress.samples > trained, "training to go on")
    assert list(patient.view().allocation) == [HERE]
    assert len(patient.events("switch")) == switches
    done = patient.finish()
    assert (done.attempt, done.preemptions, done.infrastructure_failures) == (1, 0, 0)
    assert (done.progress.lost_steps, done.progress.lost_samples) == (0, 0)


@pytest.mark.slow
def test_a_job_with_nowhere_to_go_saves_and_goes_on_elsewhere(
    patient: PatientJob, spot: OtherHost, provider: FakeMetadata
) -> None:
    cluster = patient.cluster
    cluster.client.cordon(HERE)
    try:
        patient.start(2, most=2)
        deadlines: list[datetime] = []
        waits = patient.next_event("requeue", lambda: deadlines.append(provider.take_away(NOTICE_S)))
        assert (waits.state, waits.reason) == (JobState.PENDING, Reason.SPOT_RECLAIMED)
        until_drained(cluster, deadlines[0])
        saved = patient.view().progress
        assert saved.checkpoint_samples == saved.samples > 0
        spot.die()
    finally:
        cluster.client.uncordon(HERE)
    cluster.until(lambda: patient.runs_at(2), "the job to go on")
    assert list(patient.view().allocation) == [HERE]
    done = patient.finish()
    assert (done.attempt, done.preemptions, done.infrastructure_failures) == (2, 1, 0)
    assert (done.progress.lost_steps, done.progress.lost_samples) == (0, 0)


@pytest.mark.slow
def test_with_a_service_that_hangs_the_agent_saves_the_job(
    patient: PatientJob, spot: OtherHost, provider: FakeMetadata
) -> None:
    """From before the notice until the machine is gone: nobody hears of it, and of what was saved.

    What the agent said meanwhile may wait in a connection. Then a move begins when the service wakes, and its newcomers
    go on from what was saved, as if they had met the others. Else the job starts again.
    """
    cluster = patient.cluster
    cluster.client.cordon(HERE)
    patient.start(2, most=2)
    cluster.client.uncordon(HERE)
    known = patient.view().progress.samples
    with hanging(cluster):
        deadline = provider.take_away(SHORT_NOTICE_S)
        cluster.until(lambda: not living_ranks(cluster.stack.data, patient.id), "its ranks to end")
        assert datetime.now(UTC) < deadline
        spot.die()
    cluster.until(lambda: list(patient.view().allocation) == [HERE], "the job to go on")
    cluster.until(lambda: len(patient.events("start", "switch")) >= 2, "the job to train")
    cluster.until(lambda: patient.view().progress.samples != known, "its first words")
    assert patient.view().progress.samples > known, "what was trained meanwhile was saved"
    (patient.folder / "hurry").touch()
    # The ranks' last messages were lost with the machine, so not every epoch can be audited.
    cluster.until(lambda: cluster.client.job(patient.id).state in TERMINAL_STATES, "the job to end")
    done = cluster.client.job(patient.id)
    moved = bool(patient.events("prepare"))
    assert done.state is JobState.SUCCEEDED
    assert (done.attempt, done.infrastructure_failures) == ((1, 0) if moved else (2, 1))
    assert done.progress.samples == done.progress.total_samples


@contextmanager
def hanging(cluster: Cluster) -> Iterator[None]:
    """The service's processes do nothing meanwhile."""
    pids = [cluster.stack.programs[name].pid for name in ("api", "scheduler")]
    for pid in pids:
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            assert pid is not None
            os.kill(pid, signal.SIGCONT)
