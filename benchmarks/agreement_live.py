"""A run of jobs on a live cluster of this machine, with its measurements: times, step times, and costs of changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.cluster import POLL_S, wait_for_success, warm_cluster
from benchmarks.scripts.paced import BATCH
from benchmarks.servers import connected
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, EventView, JobView
from headway.local.postgres import EmbeddedPostgres

SCRIPTS = Path(__file__).parent / "scripts"
_RELEASED = "SELECT job_id, released_at FROM slot_grants WHERE released_at IS NOT NULL"
_STEPS = """
    SELECT job_id, slots, global_batch, sum(steps), sum(step_s_sum) FROM measurements
    GROUP BY job_id, slots, global_batch
"""
_NOISE = """
    SELECT DISTINCT ON (job_id) job_id,
        CASE WHEN gradient_sqr > 0 THEN gradient_var / gradient_sqr ELSE 'Infinity' END
    FROM measurements WHERE gradient_var IS NOT NULL ORDER BY job_id, updated_at DESC
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A job of the run, and the time of its submit.

    Attributes:
        at_s: submit time, in seconds after the first submit, or after the first live resize of the job named by `follows`.
        steps: number of steps.
        step_s: seconds of a step on one slot, by a timer; None means that a step computes.
        noise_scale: noise scale of the gradient, in samples, of a job that adapts its batch; None: its batch is fixed.
    """

    name: str
    at_s: float
    steps: int
    step_s: float | None
    follows: str | None = None
    noise_scale: float | None = None

    def spec(self) -> JobSpec:
        pace = " ".join(f"{one}" for one in (self.steps, self.step_s, self.noise_scale) if one is not None)
        batch = {"policy": "adaptive", "global": BATCH, "max_global": 2 * BATCH}
        return JobSpec.model_validate(
            {
                "name": self.name,
                "workdir": str(SCRIPTS),
                "run": f"python paced.py {pace}",
                "batch": {} if self.noise_scale is None else batch,
                "env": {"OMP_NUM_THREADS": "1"},
                "elastic": {"min": 1, "max": 2},
            }
        )


WARM_UP = Submit(name="warm-up", at_s=0.0, steps=20, step_s=0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJob:
    """Finished job with its measurements.

    Attributes:
        job, events: the job and its events from the service.
        trained_at: end of its last step, reported by its script.
        step_s: mean seconds of a step by number of slots and global batch, measured by its ranks.
        noise_scale: gradient noise scale in samples, measured by its ranks; None of a fixed batch.
        released_at: times at which its slots became free.
    """

    job: JobView
    events: tuple[EventView, ...]
    trained_at: datetime
    step_s: Mapping[tuple[int, int], float]
    released_at: tuple[datetime, ...]
    noise_scale: float | None = None

    @property
    def completion_s(self) -> float:
        """Seconds from submit to end."""
        assert self.job.finished_at is not None, "the job has ended"
        return (self.job.finished_at - self.job.submitted_at).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Jobs of a run in the order of their submits, with the cluster's slots and policy."""

    jobs: tuple[FinishedJob, ...]
    slots: int
    device_kind: str
    policy: str


def run_live(folder: Path, submits: Sequence[Submit], *, slots: int, within_s: float) -> Run:
    """Run the jobs on one node with these slots until all have ended.

    Raises:
        RuntimeError: a job did not succeed within `within_s` seconds.
    """
    with warm_cluster(folder, slots, WARM_UP.spec()) as client:
        began_s = time.monotonic()
        ids = []
        for submit in submits:
            since_s = began_s if submit.follows is None else _changed_s(client, submit.follows)
            time.sleep(max(0.0, since_s + submit.at_s - time.monotonic()))
            ids.append(client.submit(submit.spec()).id)
        jobs = [wait_for_success(client, job, began_s + within_s) for job in ids]
        step_s, noise_scale, released = asyncio.run(
            _read_measurements(EmbeddedPostgres(folder / "postgres").url())
        )
        finished = tuple(
            FinishedJob(
                job=job,
                events=tuple(client.events(job.id)),
                trained_at=max(point.at for point in client.metrics(job.id) if point.name == "trained"),
                step_s=step_s[job.id],
                released_at=tuple(sorted(released[job.id])),
                noise_scale=noise_scale.get(job.id),
            )
            for job in jobs
        )
        cluster = client.cluster()
        return Run(
            jobs=finished, slots=slots, device_kind=cluster.kinds[0].device_kind, policy=cluster.policy
        )


def _changed_s(client: Client, name: str) -> float:
    """Wait for the first live resize of a job, or for its end, and return the time of the monotonic clock."""
    while client.job(name).state not in TERMINAL_STATES:
        if any(event.kind == "switch" for event in client.events(name)):
            break
        time.sleep(POLL_S)
    return time.monotonic()


async def _read_measurements(
    url: str,
) -> tuple[dict[str, dict[tuple[int, int], float]], dict[str, float], dict[str, list[datetime]]]:
    """Return, by job, the mean seconds of a step by slots and batch, the noise scale, and the times at which slots became
    free.
    """
    async with connected(url) as connection:
        steps, noise = await connection.fetch(_STEPS), await connection.fetch(_NOISE)
        grants = await connection.fetch(_RELEASED)
    step_s: dict[str, dict[tuple[int, int], float]] = {}
    for job_id, slots, batch, count, step_s_sum in steps:
        step_s.setdefault(job_id, {})[int(slots), int(batch)] = float(step_s_sum) / int(count)
    released: dict[str, list[datetime]] = {}
    for job_id, released_at in grants:
        released.setdefault(job_id, []).append(released_at)
    return step_s, {job_id: float(scale) for job_id, scale in noise}, released
