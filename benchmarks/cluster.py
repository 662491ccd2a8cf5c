"""Local cluster on which benchmarks run jobs, warmed up by a first job."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, JobState, JobView
from headway.local.stack import LocalStack

POLL_S = 0.5
"""Seconds between two requests to the service; more frequent ones would slow the jobs."""
_NODES_POLL_S = 0.05
_WARM_UP_S = 60.0


@contextmanager
def warm_cluster(folder: Path, slots: int, warm_up: JobSpec) -> Iterator[Client]:
    """Start a cluster with one agent, run one job on it, and yield a client.

    The first round and the first start of a service take longer than later ones.

    Raises:
        RuntimeError: the job did not succeed within a minute.
    """
    with LocalStack(folder, agents=1, slots=slots) as stack, stack.client() as client:
        wait_for_success(client, client.submit(warm_up).id, time.monotonic() + _WARM_UP_S)
        yield client


def ready_nodes(client: Client) -> set[str]:
    """Return the names of the nodes that take jobs."""
    return {node.name for node in client.nodes() if node.state is NodeState.READY}


def wait_for_nodes(client: Client, names: Iterable[str], until_s: float) -> None:
    """Wait until the nodes that take jobs are these.

    Raises:
        RuntimeError: they are not at `until_s` (monotonic clock).
    """
    wanted = set(names)
    while (ready := ready_nodes(client)) != wanted:
        if time.monotonic() > until_s:
            raise RuntimeError(f"of the nodes {sorted(wanted)}, {sorted(ready)} take jobs")
        time.sleep(_NODES_POLL_S)


def wait_for_success(client: Client, job_id: str, until_s: float) -> JobView:
    """Wait until the job has ended, and return it.

    Raises:
        RuntimeError: the job did not succeed, or has not ended at `until_s` (monotonic clock).
    """
    while (job := client.job(job_id)).state not in TERMINAL_STATES:
        if time.monotonic() > until_s:
            raise RuntimeError(f"{job.name} has not ended in time; it is {job.state}: {job.message}")
        time.sleep(POLL_S)
    if job.state is not JobState.SUCCEEDED:
        raise RuntimeError(f"{job.name} is {job.state}: {job.message}")
    return job
