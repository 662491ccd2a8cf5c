"""Jobs on two device kinds in the simulator: columns, limits, placement, true speeds, and worlds of snapshots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headway.contract.views.jobs import JobState
from service.domain.cluster.snapshot import Measurement, SlotKey
from service.domain.policies.registry import policy
from service.simulation.changes import ChangedSnapshot
from service.simulation.model.clusters import configurations_of, rows_of, shapes_of_kinds
from service.simulation.model.profiles import EPOCHS, read_application
from service.simulation.model.world import Application, Kind, View, World
from service.simulation.replay.engine import replay
from service.simulation.snapshots import believed_world
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of
from tests.unit.service.simulation.scenes import EVERY_MINUTE, KINDS, STEADY, everyone_gets, scripted, world

MIXED = configurations_of(KINDS, mix=True)
"""Slow nodes of 2 + 2 slots and a fast one of 4, and mixes of powers of two, and of 1 slow and 3 fast slots."""


def column(slow: int, fast: int) -> int:
    assert MIXED.parts is not None
    return MIXED.parts.tolist().index([slow, fast])


def mixing(view: View = View.ORACLE, *, jobs: int = 1, failures_per_h: float = 0.0) -> World:
    """Steady jobs that may mix kinds; a slot of either kind trains a sample per second."""
    rules = replace(EVERY_MINUTE, view=view, failures_per_node_h=failures_per_h, on_events=True)
    scene = world(*[(0.0, STEADY)] * jobs, rules=rules, seed=3)
    steady = Application(
        name="steady",
        boundaries=np.array([0.0, 400.0]),
        goodput=MIXED.slots[None, :] * 1.0,
        restart_s=7.0,
    )
    return replace(scene, configurations=MIXED, applications=(steady, steady))


def test_the_columns_by_hand() -> None:
    assert MIXED.parts is not None
    assert MIXED.parts[MIXED.mixed].tolist() == [
        [1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [2, 4], [4, 1], [4, 2], [4, 4],
    ]  # fmt: skip
    assert MIXED.nodes[column(4, 4)] == 3
    assert MIXED.usd_per_h[column(2, 4)] == 12.0
    assert MIXED.kind_name(column(4, 1)) == "fast:1+slow:4"
    alone = configurations_of(KINDS)
    assert alone.parts is None
    assert alone.slots.tolist() == MIXED.slots[~MIXED.mixed].tolist()


def test_a_mix_takes_slots_of_both_kinds() -> None:
    rooms = [np.array([2, 2]), np.array([4])]
    rows = {row.name: row.demand for row in rows_of(MIXED, shapes_of_kinds(KINDS), rooms)}
    assert (rows["slots/slow"][column(4, 2)], rows["slots/fast"][column(4, 2)]) == (4.0, 2.0)


def test_a_job_trains_on_both_kinds() -> None:
    found, _ = scripted(mixing(), everyone_gets(column(4, 4)))
    assert found.jobs.end_s[0] == pytest.approx(7.0 + 400.0 / 8)
    assert found.jobs.usd[0] == pytest.approx(12.0 * 57.0 / 3600)


def test_failures_take_mixed_jobs_and_leave_their_rows() -> None:
    found = replay(mixing(jobs=3, failures_per_h=10.0), policy("goodput"))
    assert np.isfinite(found.jobs.end_s).all()
    assert found.jobs.restarts.sum() > 0


@pytest.mark.parametrize(("view", "first"), [(View.ORACLE, True), (View.LEARNED, False)])
def test_a_job_starts_on_both_kinds_only_if_their_speed_is_known(view: View, first: bool) -> None:
    found = replay(mixing(view), policy("goodput"))
    held = found.segments.column[found.segments.job == 0]
    assert found.world.configurations.mixed[held[0]] == first
    assert np.isfinite(found.jobs.end_s).all()


def test_the_speed_of_a_mix_by_hand(tmp_path: Path) -> None:
    """Slow: 0.02 s a sample, 0.4 s of synchronisation over two nodes. Fast: 0.01 s and 0.2 s.

    60 samples on one slot of each take 20 and 40: 0.4 s of compute, and the slower synchronisation.
    """
    folder = tmp_path / "bert"
    folder.mkdir()
    for name, sample_s, sync_s in (("slow", 0.02, 0.4), ("fast", 0.01, 0.2)):
        lines = ["placement,local_bsz,step_time,sync_time"]
        for placement, sync in (("1", 0.0), ("11", sync_s)):
            lines += [f"{placement},{batch},{sample_s * batch + sync},{sync}" for batch in (10, 50)]
        (folder / f"placements-{name}.csv").write_text("\n".join(lines))
    epochs = [f"{100 * epoch},{100 * epoch},0,2,3" for epoch in range(1, EPOCHS["bert"] + 1)]
    for batch in (60, 61):
        table = "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *epochs])
        (folder / f"validation-{batch}.csv").write_text(table)
    kinds = (Kind(name="slow", node_slots=(1,)), Kind(name="fast", node_slots=(1,)))
    mixed = configurations_of(kinds, mix=True)
    application = read_application(folder, mixed)
    assert application.at_reference is not None
    steps = application.at_reference.steps
    assert steps is not None
    # Alone, 60 samples are two passes of 30.
    assert steps.step_s[0] == pytest.approx([1.2, 0.6, 0.8], rel=1e-6)
    assert steps.sync_s[0, 2] == pytest.approx(0.4)


def test_a_world_continues_a_job_on_both_kinds() -> None:
    nodes = [node_of("n", 2, "a100"), node_of("m", 2, "t4")]
    spec = spec_of("train", batch={"global": 320}, elastic={"min": 1, "max": 4, "mix": ["a100", "t4"]})
    job = job_of("j", JobState.RUNNING, spec=spec, age_s=100.0, live=True)
    held = {"j": [("n", 0), ("n", 1), ("m", 0), ("m", 1)]}
    points = tuple(
        Measurement(kind, slots, speed * slots, 500, global_batch=320, local_batch=320 // slots)
        for kind, speed in (("a100", 400.0), ("t4", 200.0))
        for slots in (1, 2)
    )
    mix = Measurement("a100:2+t4:2", 4, 1150.0, 500, nodes=2, global_batch=320, local_batch=107)
    snapshot = snapshot_of(nodes, [job], held, {"j": (*points, mix)})
    assert snapshot.held[SlotKey("m", 1)] == "j"
    found = believed_world(ChangedSnapshot(snapshot=snapshot), {}, horizon_s=3600.0)
    (arrival,), (application,) = found.world.arrivals, found.world.applications
    configurations = found.world.configurations
    assert configurations.kind_name(arrival.holds) == "a100:2+t4:2"
    assert application.goodput[0, arrival.holds] == pytest.approx(1150.0, rel=0.05)
