"""Live jobs whose rank 0 moves: what it wrote to files of the output folder is there, every line once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import PatientJob

STEPS = 40 * 26
"""Epochs of the script, times the steps of 303 samples in batches of 12."""


@pytest.mark.slow
def test_files_that_rank_0_writes_after_drains_and_resizes_hold_every_step_once(
    patient: PatientJob, tmp_path: Path
) -> None:
    patient.start(1, most=2, APPENDS="1")
    client = patient.cluster.client

    def drain_rank_0() -> None:
        (node,) = (one.node for one in client.ranks(patient.id) if one.rank == 0)
        patient.next_event("switch", lambda: client.drain(node))
        client.uncordon(node)

    drain_rank_0()
    drain_rank_0()
    patient.next_event("switch", lambda: patient.resize(2))
    drain_rank_0()
    patient.next_event("switch", lambda: patient.resize(1))
    drain_rank_0()
    patient.finish()
    target = downloaded(patient, tmp_path)
    for name in ("closed.log", "kept_open.log"):
        steps = [int(line) for line in (target / name).read_text().split()]
        assert sorted(steps) == list(range(min(steps), min(steps) + STEPS)), name
    assert int((target / "best.txt").read_text()) == max(steps)
    assert not patient.events("output_stale", "output_conflict")


@pytest.mark.slow
def test_file_of_rank_0_goes_on_on_the_surviving_node_after_all_ranks_beside_it_were_killed(
    patient: PatientJob, tmp_path: Path
) -> None:
    patient.start(3, most=3, APPENDS="1")

    def kill_first_node() -> None:
        for rank in (0, 1):
            patient.kill((1, rank))

    patient.next_event("switch", kill_first_node)
    patient.cluster.until(lambda: patient.view().size != 2, "the second loss is over")
    patient.finish()
    lines = [int(line) for line in (downloaded(patient, tmp_path) / "closed.log").read_text().split()]
    assert sorted(set(lines)) == list(range(min(lines), min(lines) + STEPS))
    assert len(lines) - len(set(lines)) <= 2, "a loss repeats at most one step"
    assert not patient.events("output_stale", "output_conflict")


def downloaded(patient: PatientJob, folder: Path) -> Path:
    """The output folder as `headway output` brings it."""
    target = folder / "downloaded"
    done = patient.cluster.headway("output", patient.name, "--to", str(target))
    assert done.returncode == 0, done.stderr
    return target
