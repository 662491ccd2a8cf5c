"""Ranks of `redundant.py` that are lost at an exact place of a step, and what that may cost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.contract.runtime import EpochClosed, Metrics, Restored
from headway.contract.values.meshes import MeshShape
from tests.elastic.live import Live

STEPS, BATCH, LOST_IN = 16, 10, 6


@dataclass(frozen=True)
class Step:
    """A step of `redundant.py` that rank 0 took: the digest of the whole state and the loss before it, and its gradient's norm."""

    number: int
    world_size: int
    before: str
    loss: float
    norm: float


def steps(folder: Path) -> list[Step]:
    found = []
    for line in (folder / "steps.txt").read_text().splitlines():
        number, size, before, loss, norm = line.split()
        found.append(Step(int(number), int(size), before, float(loss), float(norm)))
    return found


def lose(
    live: Live,
    size: int,
    *faults: tuple[int, int, str],
    mesh: MeshShape | None = None,
    then: MeshShape | None = None,
) -> None:
    """Run on `mesh` with these faults, and continue on the mesh `then` with the survivors once all that are to die are dead."""
    live.start(size, mesh=mesh, KILLS=json.dumps(faults))
    dead = [f"1.{rank}" for rank, _, place in faults if place != "unsure"]
    for one in dead:
        live.until(lambda one=one: live.processes[one].code is not None)  # type: ignore[misc]
    live.give(live.survivors([one for one in live.members if one not in dead], then))


def assert_one_step_was_lost(live: Live, expected: list[Step], last_whole: int) -> None:
    """The state of the survivors is that of an undisturbed run at the end of step `last_whole`, and training goes on from it."""
    switched = live.wait_for_switch()
    assert all(one.lost_steps <= 1 for one in switched)
    assert live.wait() == [0] * len(live.members), live.output()
    assert not live.messages(Restored)
    noted = {one.number: one for one in steps(live.job.folder)}
    assert len(noted) == len(steps(live.job.folder)), "no step is taken twice"
    assert set(range(1, STEPS + 1)) - set(noted) <= {last_whole}
    for one in expected[: last_whole + 1]:
        if one.number in noted:
            assert noted[one.number].before == one.before, one.number
    assert noted[last_whole + 1].world_size == len(live.members)
    for one in expected:
        if one.number in noted:
            assert noted[one.number].loss == pytest.approx(one.loss, rel=1e-6), one.number
    assert expected[-1].loss < expected[0].loss / 2, "it must learn, or equal losses prove nothing"
    for said in live.messages(Metrics):
        assert said.values["norm"] == pytest.approx(expected[said.samples // BATCH].norm, rel=1e-5), said
    audits = live.messages(EpochClosed)
    assert {one.epoch for one in audits} == {0, 1, 2, 3}
    assert all(one.exactly_once for one in audits)
