"""A script that accumulates by its own counter, behind the service: its changes of size cost nothing, and a loss is said."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from tests.e2e.conftest import SCRIPTS, Cluster, living_ranks, submit_at

WHOLE = 100.0


@pytest.mark.slow
def test_resizes_and_a_pause_lose_no_gradient_and_a_loss_is_shown(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    client, result = cluster.client, tmp_path / "weight"
    spec = {
        "name": name,
        "workdir": str(SCRIPTS),
        "run": "python accumulates.py",
        "env": {"HURRY": str(tmp_path / "hurry"), "RESULT": str(result)},
        "elastic": {"min": 1, "max": 2, "resize": "live"},
    }
    job = submit_at(client, JobSpec.model_validate(spec), 1)

    def runs_at(size: int) -> bool:
        now = client.job(job)
        return now.state is JobState.RUNNING and now.size == size and now.progress.samples > 0

    cluster.until(lambda: runs_at(1), "one rank")
    for size in (2, 1, 2):
        client.resize(job, size)
        cluster.until(lambda size=size: runs_at(size), f"{size} ranks")  # type: ignore[misc]
    client.pause(job)
    cluster.until(lambda: client.job(job).state is JobState.PAUSED, "the pause")
    client.resume(job)
    cluster.until(lambda: runs_at(2), "two ranks again")
    restored = client.job(job).progress
    assert restored.warnings == []
    cluster.until(lambda: client.job(job).progress.samples > restored.samples, "steps of both ranks")

    ranks = living_ranks(cluster.stack.data, job)
    os.kill(ranks[max(ranks)], signal.SIGKILL)
    cluster.until(lambda: any(one.kind == "lose" for one in client.events(job)), "the loss")
    (tmp_path / "hurry").touch()
    done = cluster.ended(job)

    (said,) = [one for one in client.events(job) if one.kind == "warning"]
    assert said.data["code"] == "GRADIENTS_LOST"
    (lost,) = [int(one) for one in re.findall(r"gradients of (\d+) batches", said.message)]
    weight = float(result.read_text(encoding="utf-8"))
    # The batch during which the rank was lost may have been repeated, and counted twice by the script.
    assert WHOLE - (lost + 1) / 7 - 1e-2 <= weight <= WHOLE - lost / 7 + 1e-2
    assert done.progress.warnings == [said.message]
    shown = cluster.headway("describe", name).stdout
    assert "use max_local_batch" in " ".join(shown.split())
