"""The kind, reason and deadline of a stop, from the service through the agent to the script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.contract.changes import ChangeKind
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from tests.e2e.conftest import SCRIPTS, PatientJob, end_job

GRACE_S = 30


def told(file: Path) -> list[tuple[str, str, float]]:
    """Return kind, reason and seconds left of each stop of which the script knew."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [tuple(json.loads(line)) for line in lines]


@pytest.mark.slow
def test_a_script_reads_who_stops_it(patient: PatientJob) -> None:
    stops, urgent_ends = patient.folder / "stops.jsonl", patient.folder / "urgent-ends"
    cluster, client = patient.cluster, patient.cluster.client
    patient.epochs = 200  # as long as three stops take on a busy machine
    patient.start(1, most=1, STOPS=str(stops))

    def trains_on() -> None:
        samples = patient.view().progress.samples
        cluster.until(lambda: patient.view().progress.samples > samples, "training to go on")

    (node,) = patient.view().allocation
    nodes = [one.name for one in client.nodes()]
    for other in nodes:
        if other != node:
            client.cordon(other)
    try:
        assert cluster.headway("drain", node).returncode == 0
        cluster.until(lambda: len(told(stops)) == 1, "the stop by the drain")
        cluster.until(lambda: patient.view().state is JobState.PENDING, "the end of its ranks")
    finally:
        for one in nodes:
            client.uncordon(one)
    trains_on()

    urgent = client.submit(
        JobSpec.model_validate(
            {
                "name": "told-urgent",
                "workdir": str(SCRIPTS),
                "run": "python counter.py",
                "env": {"HURRY": str(urgent_ends)},
                "elastic": {"min": 4, "resize": "never"},
                "priority": 100,
            }
        )
    )
    try:
        cluster.until(lambda: len(told(stops)) == 2, "the stop for the urgent job")
        cluster.until(lambda: client.job(urgent.id).state is JobState.RUNNING, "the urgent job")
        urgent_ends.touch()
        cluster.ended(urgent.id)
    finally:
        end_job(client, urgent.name)
    trains_on()

    client.pause(patient.id)
    cluster.until(lambda: patient.view().state is JobState.PAUSED, "the pause")
    drained, evicted, paused = told(stops)
    assert [drained[0], evicted[0], paused[0]] == [ChangeKind.DRAIN, ChangeKind.PRIORITY, ChangeKind.USER]
    assert node in drained[1]
    for _, reason, left_s in (drained, evicted, paused):
        assert reason
        assert 0 < left_s <= GRACE_S
    client.resume(patient.id)
    patient.finish()
