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
    done = patient.finish()
    target = tmp_path / "downloaded"
    downloaded = patient.cluster.headway("output", done.name, "--to", str(target))
    assert downloaded.returncode == 0, downloaded.stderr
    for name in ("closed.log", "kept_open.log"):
        steps = [int(line) for line in (target / name).read_text().split()]
        assert sorted(steps) == list(range(min(steps), min(steps) + STEPS)), name
    assert int((target / "best.txt").read_text()) == max(steps)
    assert not patient.events("output_stale", "output_conflict")
