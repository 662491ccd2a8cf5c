"""The input of a round is not quadratic in jobs."""

from __future__ import annotations

from service.domain.allocation.inputs.round import build_round
from service.domain.cluster.snapshot import Snapshot
from tests.histories.service.domain.policies.test_scale import MOST, calls
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of
from tests.unit.service.domain.allocation.inputs.test_round import RUNNING, elastic, measured


def crowd(count: int) -> Snapshot:
    """Jobs on a slot each, of which each was measured at two sizes."""
    names = [f"j{index}" for index in range(count)]
    spec = elastic(1, 16, sizes="pow2")
    jobs = [job_of(name, RUNNING, age_s=600, spec=spec_of(name, **spec)) for name in names]
    nodes = [node_of(f"n{index}", slots=8) for index in range(count // 8)]
    held = {name: [(f"n{index // 8}", index % 8)] for index, name in enumerate(names)}
    points = {name: measured((1, 100.0), (2, 150.0 + index)) for index, name in enumerate(names)}
    return snapshot_of(nodes, jobs, held, points)


def test_twice_the_jobs_take_about_twice_as_much() -> None:
    few, many = crowd(400), crowd(800)
    assert calls(lambda: build_round(many)) < MOST * calls(lambda: build_round(few))
