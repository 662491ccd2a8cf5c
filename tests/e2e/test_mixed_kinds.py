"""A job on slots of two kinds with real agents and ranks: balanced in its first step, by measurements of its class."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.arguments import shared_folder
from benchmarks.mixed_kinds import KINDS, QUICK_BATCH, agents, measure
from headway.contract.views.jobs import Reason
from headway.local.stack import LocalStack


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_the_first_step_is_divided_by_the_speeds_of_both_kinds(tmp_path: Path) -> None:
    with LocalStack(tmp_path / "stack", agents=0) as stack:
        shared = shared_folder(tmp_path)
        with stack.client() as client, agents(stack, client):
            found = measure(client, shared, 0, alone_steps=12, batch=QUICK_BATCH)
            fast, slow = found["local_batches"][0]
            assert fast + slow == QUICK_BATCH
            speeds = found["speeds"]
            # The service's measurements include the slow first steps, which the benchmark leaves out.
            assert fast / slow == pytest.approx(speeds[0] / speeds[1], rel=0.35)
            assert fast > slow
            (job,) = (one for one in client.jobs() if one.name == "mix0-3")
            assert job.reason is Reason.COMPLETED
            (start,) = (one for one in client.events(job.id) if one.kind == "allocate")
            assert start.message.startswith(f"2 slots (1 {KINDS[0]} + 1 {KINDS[1]}) on ")
