"""A rank that its host slows down is found by its steps, and its job moves to a free slot in place."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.faulting.users import SCRIPTS
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from headway.local.stack import LocalStack
from tests.e2e.conftest import Cluster, living_ranks

EPOCHS, STEP_S = 30, 0.04
STOP_S, RUN_S = 0.12, 0.02


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Stop a process most of the time, as a host that steals its CPU."""
    over = threading.Event()

    def stop_and_go() -> None:
        with suppress(ProcessLookupError):  # the rank has left its job
            while not over.wait(RUN_S):
                os.kill(pid, signal.SIGSTOP)
                over.wait(STOP_S)
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_a_slowed_rank_is_found_and_its_job_moves(tmp_path: Path) -> None:
    with LocalStack(tmp_path / "stack", agents=2, slots=2) as stack, stack.client() as client:
        cluster = Cluster(stack, client)
        spec = {
            "name": "slowed",
            "workdir": str(SCRIPTS),
            "run": f"python counted.py {EPOCHS} 1 {STEP_S}",
            "elastic": {"min": 3, "max": 3},
        }
        job = client.submit(JobSpec.model_validate(spec)).id
        cluster.until(lambda: client.job(job).progress.samples > 0, "the first steps")
        held = client.job(job).allocation
        (alone,) = (node for node, slots in held.items() if len(slots) == 1)
        there = stack.data / "agents" / alone
        (pid,) = (
            pid
            for pid in living_ranks(stack.data, job).values()
            if Path(f"/proc/{pid}/cwd").readlink().is_relative_to(there)
        )
        with slowed(pid):
            cluster.until(
                lambda: any(event.kind == "straggler" for event in client.events(job)), "it to be found"
            )
            cluster.until(lambda: client.job(job).allocation != held, "the job to move")
        cluster.until(lambda: client.job(job).state is JobState.SUCCEEDED, "its end")
        done = client.job(job)
        # Later ones are possible: a busy machine slows ranks down as truly as this test does.
        first = next(event.data for event in client.events(job) if event.kind == "straggler")
        assert (first["node"], first["slot"]) == (alone, held[alone][0])
        assert first["times"] > 1.5
        (node,) = (node for node in client.nodes() if node.name == alone)
        assert node.slots[held[alone][0]].slow != ""
        assert (done.attempt, done.progress.epochs_exact, done.infrastructure_failures) == (1, EPOCHS, 0)
