"""A run of real jobs on a real cluster of this machine, and what was measured of it: times, profiles, costs of changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import asyncpg

from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, EventView, JobState, JobView
from headway.local.postgres import EmbeddedPostgres
from headway.local.stack import LocalStack

SCRIPTS = Path(__file__).parent / "scripts"
_SELDOM_S = 0.5
"""How often the service is asked: what asks it more often slows what is measured."""
_RELEASED = "SELECT job_id, released_at FROM slot_grants WHERE released_at IS NOT NULL"
_STEPS = "SELECT job_id, slots, sum(steps), sum(step_s_sum) FROM measurements GROUP BY job_id, slots"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A job to be run.

    Attributes:
        at_s: when it comes, after the first of a run, or after the first change in place of the job that `follows` names.
        steps: that it takes.
        step_s: of each on one slot, by a timer; None: what its arithmetic takes.
    """

    name: str
    at_s: float
    steps: int
    step_s: float | None
    follows: str | None = None

    def spec(self) -> JobSpec:
        pace = "" if self.step_s is None else f" {self.step_s}"
        return JobSpec.model_validate(
            {
                "name": self.name,
                "workdir": str(SCRIPTS),
                "run": f"python paced.py {self.steps}{pace}",
                "env": {"OMP_NUM_THREADS": "1"},
                "elastic": {"min": 1, "max": 2},
            }
        )


WARM_UP = Submit(name="warm-up", at_s=0.0, steps=20, step_s=0.05)
_WARM_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A job that has ended.

    Attributes:
        job, events: what the service says of it.
        trained_at: when its last step ended, by its script.
        step_s: mean seconds of a step by slots, as its ranks measured them.
        released_at: when slots of it became free.
    """

    job: JobView
    events: tuple[EventView, ...]
    trained_at: datetime
    step_s: Mapping[int, float]
    released_at: tuple[datetime, ...]

    @property
    def completion_s(self) -> float:
        """From submit to end."""
        assert self.job.finished_at is not None, "it has ended"
        return (self.job.finished_at - self.job.submitted_at).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Every job of a run, in the order of their submits; where they ran, and the policy that decided."""

    jobs: tuple[Seen, ...]
    slots: int
    device_kind: str
    policy: str


def run_live(folder: Path, submits: Sequence[Submit], *, slots: int, within_s: float) -> Run:
    """The jobs on one node of so many slots, until all have ended.

    Raises:
        RuntimeError: one did not succeed, or not within `within_s` seconds.
    """
    with LocalStack(folder, agents=1, slots=slots) as stack, stack.client() as client:
        # The first round and the first start of a service take longer than later ones.
        _ended(client, client.submit(WARM_UP.spec()).id, time.monotonic() + _WARM_S)
        began_s = time.monotonic()
        ids = []
        for submit in submits:
            since_s = began_s if submit.follows is None else _changed_s(client, submit.follows)
            time.sleep(max(0.0, since_s + submit.at_s - time.monotonic()))
            ids.append(client.submit(submit.spec()).id)
        jobs = [_ended(client, job, began_s + within_s) for job in ids]
        step_s, released = asyncio.run(_measured(EmbeddedPostgres(folder / "postgres").url()))
        seen = tuple(
            Seen(
                job=job,
                events=tuple(client.events(job.id)),
                trained_at=next(point.at for point in client.metrics(job.id) if point.name == "trained"),
                step_s=step_s[job.id],
                released_at=tuple(sorted(released[job.id])),
            )
            for job in jobs
        )
        cluster = client.cluster()
        return Run(jobs=seen, slots=slots, device_kind=cluster.kinds[0].device_kind, policy=cluster.policy)


def _changed_s(client: Client, name: str) -> float:
    """When a job has changed its slots in place, or ended without, by the monotonic clock."""
    while client.job(name).state not in TERMINAL_STATES:
        if any(event.kind == "switch" for event in client.events(name)):
            break
        time.sleep(_SELDOM_S)
    return time.monotonic()


def _ended(client: Client, job_id: str, until_s: float) -> JobView:
    while True:
        job = client.job(job_id)
        if job.state in TERMINAL_STATES:
            break
        if time.monotonic() > until_s:
            raise RuntimeError(f"{job.name} has not ended in time; it is {job.state}: {job.message}")
        time.sleep(_SELDOM_S)
    if job.state is not JobState.SUCCEEDED:
        raise RuntimeError(f"{job.name} is {job.state}: {job.message}")
    return job


async def _measured(url: str) -> tuple[dict[str, dict[int, float]], dict[str, list[datetime]]]:
    """Mean seconds of a step by job and slots, and when slots became free by job."""
    connection = await asyncpg.connect(url)
    try:
        steps, grants = await connection.fetch(_STEPS), await connection.fetch(_RELEASED)
    finally:
        await connection.close()
    step_s: dict[str, dict[int, float]] = {}
    for job_id, slots, count, step_s_sum in steps:
        step_s.setdefault(job_id, {})[int(slots)] = float(step_s_sum) / int(count)
    released: dict[str, list[datetime]] = {}
    for job_id, released_at in grants:
        released.setdefault(job_id, []).append(released_at)
    return step_s, released
