"""Sharded jobs whose scripts note every step, for tests of their continuity."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.contract.values.meshes import MeshShape
from tests.elastic.live import Live

EPOCHS, STEPS_PER_EPOCH = 6, 4


@dataclass(frozen=True)
class Step:
    """A step as rank 0 noted it: digests of the whole state, and the loss over all samples."""

    number: int
    world_size: int
    before: str
    after: str
    loss: float


def steps(folder: Path) -> list[Step]:
    found = []
    for line in (folder / "steps.txt").read_text().splitlines():
        number, size, before, after, loss = line.split()
        found.append(Step(int(number), int(size), before, after, float(loss)))
    return found


@dataclass(frozen=True)
class Change:
    """A change to another mesh, in which the ranks before `first` and from `last` on leave, and others join."""

    mesh: MeshShape
    first: int = 0
    last: int | None = None


def play(live: Live, changes: list[Change]) -> None:
    """Train to the end on one mesh after the other, three steps on each but the last."""
    live.start(changes[0].mesh.size, steps=3, mesh=changes[0].mesh)
    for change in changes[1:]:
        live.wait_until_held()
        kept = live.members[change.first : change.last]
        kept = kept[: change.mesh.size]
        live.give(live.newcomers(kept, change.mesh.size - len(kept), mesh=change.mesh))
        live.allow(3)
        assert all(one.lost_steps == 0 for one in live.wait_for_switch())
    live.allow_all()
    assert set(live.wait()) == {0}, live.output()


def assert_continuous(noted: list[Step], undisturbed: list[Step]) -> None:
    """Every step begins with the very state in which the one before ended, and learns as if nothing had happened."""
    assert [one.number for one in noted] == list(range(1, EPOCHS * STEPS_PER_EPOCH + 1))
    assert [one.before for one in noted[1:]] == [one.after for one in noted[:-1]]
    expected = [one.loss for one in undisturbed]
    assert expected[-1] < expected[0] / 2, "it must learn, or equal losses prove nothing"
    assert [one.loss for one in noted] == pytest.approx(expected, rel=1e-6)
