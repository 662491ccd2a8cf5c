"""Jobs, nodes and readings of their columns, shared by the tests of a round."""

from __future__ import annotations

from typing import Any

from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobState
from service.domain.allocation.configurations.scope import RoundScope
from service.domain.allocation.decision.explain import Case, all_options
from service.domain.allocation.decision.plan import Decision, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Measurement, Node, Snapshot
from service.domain.jobs.job import Job
from service.domain.policies.goodput import Goodput
from service.domain.shared.arrays import BoolArray
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of

RUNNING = JobState.RUNNING


def elastic_job(
    job_id: str = "j", low: int = 1, high: int = 4, *, state: JobState = JobState.PENDING, **fields: Any
) -> Job:
    """A job of `low` to `high` slots. `elastic` and the names of a spec's other fields go into its spec."""
    elastic = {"min": low, "max": high, **fields.pop("elastic", {})}
    in_spec = (
        "priority",
        "resources",
        "market",
        "goal",
        "image",
        "project",
        "checkpoint",
        "batch",
        "resumes",
        "parallel",
    )
    spec = spec_of(
        fields.pop("name", job_id),
        elastic=elastic,
        **{key: fields.pop(key) for key in in_spec if key in fields},
    )
    return job_of(job_id, state, age_s=fields.pop("age_s", 600.0), spec=spec, **fields)


def on(node: str, *slots: int) -> list[tuple[str, int]]:
    return [(node, slot) for slot in slots]


def running_alone(
    size: int = 2, nodes: tuple[Node, ...] = (), points: tuple[Measurement, ...] = (), **fields: Any
) -> Snapshot:
    """A job on the first `size` slots of node `n`, which has eight unless `nodes` say otherwise."""
    job = elastic_job(state=RUNNING, **{"high": 8, **fields})
    return snapshot_of(nodes or (node_of("n", 8),), [job], {"j": on("n", *range(size))}, {"j": points})


def speeds(*points: tuple[int, float], kind: str = "cpu", **fields: Any) -> tuple[Measurement, ...]:
    """Measurements of sizes in samples per second."""
    return tuple(Measurement(kind, slots, speed, 500, global_batch=64, **fields) for slots, speed in points)


def spot(node_id: str, slots: int = 2, kind: str = "cpu", **fields: Any) -> Node:
    return node_of(node_id, slots, kind, market=Market.SPOT, **fields)


def texts(scope: RoundScope, mask: BoolArray) -> list[str]:
    """The columns of a mask (C,) as text for users."""
    return [scope.columns.text_of(column) for column in mask.nonzero()[0].tolist()]


def decisions(snapshot: Snapshot) -> dict[str, Decision]:
    """The decisions of a round by job id, with the goodput policy."""
    return {one.job_id: one for one in decide(build_round(snapshot), Goodput(), solve).decisions}


def case_of(snapshot: Snapshot, row: int = 0, size: int = 0, **fields: Any) -> Case:
    """The case of a job that gets the column of `size` slots in the first pool, 0 for none."""
    round_ = build_round(snapshot)
    column = round_.columns.find(round_.columns.pools[0].name, size) if size else NOTHING
    choices = Goodput().choose(round_.given, round_.contest.solver(solve))
    return Case(round_, row, column, all_options(round_, choices)[row], **fields)
