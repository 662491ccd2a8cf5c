"""The cost of a column until a job's end, caps as rows, and the work that a round finds left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.contract.spec import Resize
from headway.contract.views.jobs import JobProgress, JobState
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.limits.spending import (
    Prospects,
    cap_rows,
    prospects_of,
)
from service.domain.cluster.snapshot import Cap, Measurement, Snapshot
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of
from tests.unit.service.domain.allocation.limits.scenes import (
    FIRM,
    SPOT,
    columns_in,
    job,
    pool_of,
    rooms_of,
)

BOTH = rooms_of(pool_of(FIRM, 4, usd=4.0), pool_of(SPOT, 4, usd=1.0))
CHEAP = rooms_of(pool_of(FIRM, 8, usd=1.0))


def course(goodput: list[list[float]], remaining: list[float]) -> Prospects:
    rates = np.array(goodput)
    return Prospects(
        goodput=rates, low=rates, high=rates, remaining=np.array(remaining), start_s=np.zeros(len(rates))
    )


@pytest.mark.parametrize(
    ("goodput", "remaining", "usd_per_h", "cost"),
    [
        (100.0, 360_000.0, 4.0, 4.0),  # an hour at $4
        (200.0, 360_000.0, 4.0, 2.0),
        (100.0, 3_600_000.0, 0.5, 5.0),
        (100.0, 360_000.0, 0.0, 0.0),
        (0.0, 360_000.0, 4.0, np.inf),  # it would never end
        (0.0, 360_000.0, 0.0, np.inf),
        (100.0, np.nan, 4.0, np.nan),
        (100.0, np.nan, 0.0, 0.0),  # free, however long it takes
        (0.0, np.nan, 4.0, np.inf),
    ],
)
def test_the_cost_is_the_time_to_the_end_at_the_price(
    goodput: float, remaining: float, usd_per_h: float, cost: float
) -> None:
    (found,) = course([[goodput]], [remaining]).cost_usd(np.array([usd_per_h]))
    assert found.tolist() == pytest.approx([cost], nan_ok=True)


def test_each_job_has_its_own_cost_of_each_column() -> None:
    found = course([[1.0, 2.0], [4.0, 0.0]], [3600.0, 7200.0]).cost_usd(np.array([1.0, 3.0]))
    assert found.tolist() == [[1.0, 1.5], [0.5, np.inf]]


def cluster(*caps: Cap, **fields: Any) -> Snapshot:
    """Jobs `a` and `b` run on 2 and 1 slots of $1.50 an hour, `c` of another project on a free slot."""
    nodes = [node_of("paid", 4, usd_per_slot_h=1.5), node_of("free", 2)]
    jobs = [
        job_of("a", JobState.RUNNING, spec=spec_of("a", project="red")),
        job_of("b", JobState.RUNNING, spec=spec_of("b", project="red")),
        job_of("c", JobState.RUNNING, spec=spec_of("c", project="blue")),
    ]
    held = {"a": [("paid", 0), ("paid", 1)], "b": [("paid", 2)], "c": [("free", 0)]}
    return replace(snapshot_of(nodes, jobs, held), caps=caps, **fields)


@pytest.mark.parametrize(
    ("project", "deciding", "left"),
    [
        (None, "abc", 10.0),
        (None, "ac", 8.5),
        (None, "bc", 7.0),
        (None, "ab", 10.0),  # c holds a slot without a price
        (None, "", 5.5),
        ("red", "c", 5.5),
        ("red", "ab", 10.0),
        ("blue", "c", 10.0),
        ("blue", "", 10.0),
    ],
)
def test_a_cap_has_the_dollars_that_jobs_outside_the_round_leave(
    project: str | None, deciding: str, left: float
) -> None:
    snapshot = cluster(Cap("cap", project, 10.0))
    jobs = [snapshot.jobs[one] for one in deciding]
    (row,) = cap_rows(snapshot, jobs, columns_in(CHEAP, job()))
    assert (row.name, row.capacity) == ("budget/cap", left)


def test_a_cap_that_others_exceed_leaves_nothing() -> None:
    (row,) = cap_rows(cluster(Cap("cap", None, 2.0)), [], columns_in(CHEAP, job()))
    assert row.capacity == 0.0


def test_a_cap_counts_dollars_of_its_project() -> None:
    snapshot = cluster(Cap("red", "red", 9.0), Cap("all", None, 7.0))
    columns = columns_in(CHEAP, job())
    red, every = cap_rows(snapshot, list(snapshot.jobs.values()), columns)
    assert red.jobs is not None
    assert red.jobs.tolist() == [True, True, False]
    assert every.jobs is None
    assert red.demand.tolist() == columns.configurations.usd_per_h.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert cap_rows(cluster(), [], columns) == ()


def test_slots_of_a_job_that_has_ended_do_not_count() -> None:
    snapshot = cluster(Cap("cap", None, 10.0))
    ended = replace(snapshot, jobs={"c": snapshot.jobs["c"]})
    (row,) = cap_rows(ended, [], columns_in(CHEAP, job()))
    assert row.capacity == 10.0


def spent(samples: int, total: int | None, *, measured: bool = True) -> float:
    """Reference samples that a round finds left to a job."""
    one = job_of(
        "j",
        JobState.RUNNING,
        age_s=600.0,
        spec=spec_of("j", elastic={"min": 1, "max": 2}),
        progress=JobProgress(samples=samples, total_samples=total),
    )
    speeds = (Measurement("cpu", 1, 100.0, 500, global_batch=64),) if measured else ()
    held = {"j": [("n", 0)]}
    return float(
        build_round(snapshot_of([node_of("n")], [one], held, {"j": speeds})).estimates.prospects.remaining[0]
    )


@pytest.mark.parametrize(
    ("samples", "total", "left"),
    [(0, 1000, 1000.0), (400, 1000, 600.0), (1000, 1000, 1.0), (2000, 1000, 1.0), (5, None, np.nan)],
)
def test_the_samples_left_are_the_total_less_the_progress(
    samples: int, total: int | None, left: float
) -> None:
    assert spent(samples, total) == pytest.approx(left, nan_ok=True)


def test_without_a_measured_speed_the_work_left_is_unknown() -> None:
    assert np.isnan(spent(400, 1000, measured=False))


def test_prospects_scale_with_the_share_after_interruptions() -> None:
    one = job_of(
        "j", JobState.RUNNING, spec=spec_of("j", elastic={"min": 1, "max": 2, "resize": Resize.RESTART})
    )
    shown = {"j": (Measurement("cpu", 1, 100.0, 500, global_batch=64),)}
    round_ = build_round(snapshot_of([node_of("n")], [one], {"j": [("n", 0)]}, shown))
    share = np.array([[0.5, 0.25]])
    whole, part = (
        prospects_of(
            [one],
            round_.given.current,
            round_.estimates.learned,
            round_.estimates.table,
            share=factor,
            start_s=[7.0],
        )
        for factor in (None, share)
    )
    for name in ("goodput", "low", "high"):
        assert getattr(part, name) == pytest.approx(getattr(whole, name) * share)
        assert getattr(whole, name) is getattr(round_.estimates.table, name)
    assert (whole.goodput > 0).all()
    assert part.start_s.tolist() == [7.0]
