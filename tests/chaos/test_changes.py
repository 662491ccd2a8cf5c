"""Members change again and again, and die while they change: training goes on, and every sample counts once."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from typing import Any

import pytest

from headway.contract.views.jobs import JobState
from tests.e2e.conftest import PatientJob

SLOTS = 4
CHANGES = 6
CHANGES_OF_A_STORM = 6
LONGEST_WAIT_S = 0.15
"""How long after the step of a change that was waited for the victim dies, at most: about as long as the step takes."""
SOON_S = 0.05
"""Time between two looks for the step of a change."""


@pytest.mark.slow
def test_a_storm_of_resizes(patient: PatientJob) -> None:
    patient.epochs = 100  # each change may wait for a process to start
    patient.start(2, most=SLOTS)
    asked = itertools.cycle([1, SLOTS, 2, 3])

    def asked_again() -> bool:
        patient.resize(next(asked))
        return len(patient.events("switch", "abandon")) >= CHANGES_OF_A_STORM

    patient.cluster.until(asked_again, "the storm to be over")
    patient.resize(3)
    patient.cluster.until(lambda: patient.runs_at(3), "what was asked for last")
    done = patient.finish()
    assert (done.attempt, done.infrastructure_failures) == (1, 0), "it was never started anew"
    assert (done.progress.lost_samples, done.progress.lost_steps) == (0, 0)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_ranks_die_at_any_moment_of_a_change(patient: PatientJob, seed: int) -> None:
    dice = random.Random(seed)
    patient.start(dice.choice([1, 2]), most=SLOTS)
    for _ in range(CHANGES):
        sizes = set(range(1, SLOTS + 1)) - {patient.view().pinned_size}
        _change_until(patient, dice.choice(sorted(sizes)), dice.choice(["prepare", "order", "switch"]))
        _wait(patient, dice.uniform(0, LONGEST_WAIT_S))
        _kill_one(patient, dice)
    patient.cluster.until(lambda: patient.runs_at(patient.view().pinned_size or 0), "the size asked for last")
    patient.finish()
    assert all(event.data["lost_steps"] <= 1 for event in patient.events("switch"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "fields", "names", "losses"),
    [
        pytest.param(3, {"redundancy": "neighbour"}, "fsdp", 4, id="neighbours"),
        pytest.param(4, {"parallel": {"fsdp": 2}}, "replicate,fsdp", 2, id="replicas"),
    ],
)
def test_ranks_of_a_sharded_job_with_copies_die_at_any_moment_of_a_step(
    patient: PatientJob, size: int, fields: dict[str, Any], names: str, losses: int
) -> None:
    dice = random.Random(5)
    patient.start(size, most=size, SHARDED=names, **fields)
    for _ in range(losses):
        patient.cluster.until(lambda: patient.runs_at(size) and _trains(patient), "it to train at its size")
        before = len(patient.events("switch"))
        _wait(patient, dice.uniform(0, LONGEST_WAIT_S))
        _kill_one(patient, dice)
        patient.cluster.until(lambda before=before: len(patient.events("switch")) > before, "a switch")  # type: ignore[misc]
    done = patient.finish()
    assert (done.attempt, done.progress.lost_samples) == (1, 0), "it was never started anew"
    assert all(event.data["lost_steps"] <= 1 for event in patient.events("switch"))


def _change_until(patient: PatientJob, size: int, moment: str) -> None:
    """Ask for a size once it trains, and return when the change has come so far, or is complete."""
    patient.cluster.until(lambda: _trains(patient), "it to train")
    before = len(patient.events(moment))
    patient.resize(size)
    patient.cluster.until(
        lambda: len(patient.events(moment)) > before or patient.runs_at(size),
        f"{moment}, on the way to {size}",
        every_s=SOON_S,
    )


def _trains(patient: PatientJob) -> bool:
    """Return whether the job has come to its first step since its last start, so that its members can change."""
    last = patient.events("allocate", "first_step")[-1]
    return patient.view().state is JobState.RUNNING and last.kind == "first_step"


def _wait(patient: PatientJob, seconds: float) -> None:
    over_s = time.monotonic() + seconds
    patient.cluster.until(lambda: time.monotonic() > over_s, "the dice's moment", every_s=SOON_S)


def _kill_one(patient: PatientJob, dice: random.Random) -> None:
    living = patient.ranks()
    if living:
        with contextlib.suppress(ProcessLookupError):  # it has left just now
            os.kill(living[dice.choice(sorted(living))], signal.SIGKILL)
