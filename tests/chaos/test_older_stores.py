"""PostgreSQL or Redis comes back, under a running service, with data that is older than what agents were told."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis as redis_client

from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from headway.errors import HeadwayError
from headway.local.postgres import EmbeddedPostgres
from headway.local.redis import EmbeddedRedis
from headway.local.stack import LocalStack, Stores
from service.usecases.upkeep.restore import GENERATIONS_LEFT_OUT
from tests.e2e.conftest import Cluster, living_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = r"""
import os, sys, time
from pathlib import Path

# One process at a time may hold a slot: the file of the slot names its holder.
slots, ends = Path(os.environ["SLOTS"]), Path(os.environ["ENDS"])
node = os.environ["HEADWAY_CONTROL"].split("/agents/")[1].split("/")[0]
holder = slots / node
if holder.exists():
    pid = int(holder.read_text())
    alive = Path(f"/proc/{pid}/stat")
    if pid != os.getpid() and alive.exists() and alive.read_text().rpartition(")")[2].split()[0] != "Z":
        (slots / f"overlap-{node}-{pid}-{os.getpid()}").touch()
holder.write_text(str(os.getpid()))
while not (ends / os.environ["HEADWAY_JOB_NAME"]).exists():
    time.sleep(0.1)
"""


@dataclass
class Failover:
    """A PostgreSQL, and its replica: a copy of its data folder as of one moment."""

    server: EmbeddedPostgres

    @property
    def replica(self) -> Path:
        return self.server.data / "replica"

    def copy(self) -> None:
        self.server.stop()
        shutil.copytree(self.server.cluster, self.replica)
        self.server.start()

    def fail_over(self) -> None:
        self.server.stop()
        shutil.rmtree(self.server.cluster)
        self.replica.rename(self.server.cluster)
        self.server.start()


@dataclass
class Stage:
    cluster: Cluster
    database: Failover
    redis: EmbeddedRedis
    folder: Path

    def submit(self, name: str, most: int = 1) -> str:
        spec = {
            "name": name,
            "workdir": str(self.folder / "work"),
            "run": "python hold.py",
            "env": {"SLOTS": str(self.folder / "slots"), "ENDS": str(self.folder / "ends")},
            "elastic": {"max": most},
        }
        return self.cluster.client.submit(JobSpec.model_validate(spec)).id

    def until_state(self, job: str, state: JobState) -> None:
        self.cluster.until(lambda: self.cluster.client.job(job).state is state, f"{job} to be {state}")

    def end(self, name: str) -> None:
        (self.folder / "ends" / name).touch()

    def waiting_commands(self) -> dict[str, int]:
        """Return the number of commands in each agent's stream."""
        with redis_client.Redis.from_url(self.redis.url()) as redis:
            return {key.decode(): redis.xlen(key) for key in redis.scan_iter("headway:node:*")}

    def overlaps(self) -> list[str]:
        """Return the processes that found another one alive on their slot."""
        return [one.name for one in (self.folder / "slots").iterdir() if one.name.startswith("overlap")]

    def log(self) -> str:
        return self.cluster.stack.programs["scheduler"].log.read_text(encoding="utf-8")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    for name in ("work", "slots", "ends"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    (tmp_path / "work" / "hold.py").write_text(SCRIPT, encoding="utf-8")
    with EmbeddedPostgres(tmp_path / "postgres") as server, EmbeddedRedis(tmp_path / "redis") as redis:
        stores = Stores(database_url=server.url(), redis_url=redis.url())
        with (
            LocalStack(tmp_path / "stack", agents=2, slots=1, stores=stores) as stack,
            Client(stack.url, stack.token, patience_s=120) as client,
        ):
            yield Stage(Cluster(stack, client), Failover(server), redis, tmp_path)


def test_failover_to_a_replica_without_the_tail_runs_nothing_twice(stage: Stage) -> None:
    client, until = stage.cluster.client, stage.cluster.until
    kept = stage.submit("kept")
    stage.until_state(kept, JobState.RUNNING)
    stage.database.copy()
    lost = stage.submit("lost")
    stage.until_state(lost, JobState.RUNNING)
    assert len(living_ranks(stage.cluster.stack.data, lost)) == 1
    stage.database.fail_over()
    until(lambda: "database_lost_commits" in stage.log(), "the scheduler to notice the lost tail")
    # The job of the tail is gone, and so is its process.
    with pytest.raises(HeadwayError):
        client.job(lost)
    until(lambda: not living_ranks(stage.cluster.stack.data, lost), "the agent to end the unknown job")
    until(lambda: {one.state for one in client.nodes()} == {NodeState.READY}, "both nodes to be back")
    # The job that survived starts again, under a generation that no agent has seen, without a retry.
    until(lambda: client.job(kept).state is JobState.RUNNING, "the job that survived to run again")
    job = client.job(kept)
    assert job.generation > GENERATIONS_LEFT_OUT
    assert job.infrastructure_failures == 0
    messages = [event.message for event in client.events(kept) if event.kind == "restored"]
    assert len(messages) == 1
    assert "lost commits" in messages[0]
    # Both slots work: a job of after the failover runs beside it.
    after = stage.submit("after")
    stage.until_state(after, JobState.RUNNING)
    for name, one in (("kept", kept), ("after", after)):
        stage.end(name)
        stage.until_state(one, JobState.SUCCEEDED)
    assert stage.overlaps() == []
    assert stage.log().count("database_lost_commits") == 1


def test_old_dump_of_redis_starts_no_older_generation(stage: Stage) -> None:
    client, until = stage.cluster.client, stage.cluster.until
    agents = [
        pid
        for name, one in stage.cluster.stack.programs.items()
        if name.startswith("agent") and (pid := one.pid)
    ]
    assert len(agents) == 2
    # The dump has the first generation's command, which no agent has taken yet.
    for agent in agents:
        os.kill(agent, signal.SIGSTOP)
    try:
        job = stage.submit("job", most=2)
        client.resize(job, 1)
        until(lambda: sum(stage.waiting_commands().values()) > 0, "the command in Redis")
        with redis_client.Redis.from_url(stage.redis.url()) as redis:
            redis.config_set("dbfilename", "old.rdb")
            redis.save()
    finally:
        for agent in agents:
            os.kill(agent, signal.SIGCONT)
    stage.until_state(job, JobState.RUNNING)
    first = client.job(job).generation
    client.resize(job, 2)
    until(
        lambda: (now := client.job(job)).state is JobState.RUNNING and now.size == 2,
        "the job at its new size",
    )
    ranks = living_ranks(stage.cluster.stack.data, job)
    assert min(generation for generation, _ in ranks) > first
    stage.redis.stop()
    shutil.copy(stage.redis.data / "old.rdb", stage.redis.data / "dump.rdb")
    stage.redis.start()
    assert sum(stage.waiting_commands().values()) > 0, "the old command is back"
    until(lambda: sum(stage.waiting_commands().values()) == 0, "the agents to take the old commands")
    after = stage.submit("after")  # its command comes through the same streams, after the old ones
    assert client.job(after).state is JobState.PENDING
    assert living_ranks(stage.cluster.stack.data, job) == ranks, "no process has ended or begun"
    stage.end("job")
    stage.until_state(job, JobState.SUCCEEDED)
    stage.end("after")
    stage.until_state(after, JobState.SUCCEEDED)
    done = client.job(job)
    assert (done.infrastructure_failures, done.generation) == (0, max(generation for generation, _ in ranks))
    assert stage.overlaps() == []
    assert "database_lost_commits" not in stage.log(), "a queue that is behind proves nothing"
