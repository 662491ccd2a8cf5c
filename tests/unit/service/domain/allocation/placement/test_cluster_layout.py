"""Together where it is worth the moves of others, apart where it is not."""

from __future__ import annotations

from typing import Any

from headway.contract.views.jobs import JobState
from service.domain.allocation.decision.plan import Action, Decision, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Measurement, Snapshot
from service.domain.jobs.job import Job
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of


def job(job_id: str, high: int = 1, **fields: Any) -> Job:
    spec = spec_of(job_id, elastic={"min": 1, "max": high, "resize": fields.pop("resize", "live")})
    return job_of(job_id, JobState.RUNNING, age_s=600, spec=spec, **fields)


def crowded(*measured: Measurement, live: bool = False) -> Snapshot:
    """Two nodes of two slots: `grows` is to have two slots, and a neighbour has the other one of its node."""
    jobs = [
        job("grows", 2, pinned_size=2, live=True),
        job("beside", live=live, resize="live" if live else "restart"),
        job("else", live=True),
    ]
    held = {"grows": [("a", 0)], "beside": [("a", 1)], "else": [("b", 0)]}
    return snapshot_of([node_of("a"), node_of("b")], jobs, held, {"grows": measured})


def decisions(snapshot: Snapshot) -> dict[str, Decision]:
    return {one.job_id: one for one in decide(build_round(snapshot), Goodput(), solve).decisions}


def test_nobody_is_restarted_for_a_gain_that_nobody_has_seen() -> None:
    plan = decisions(crowded())
    assert plan["grows"].allocation == {"a": (0,), "b": (1,)}
    assert {plan["beside"].action, plan["else"].action} == {Action.KEEP}


def test_a_job_that_is_slow_across_nodes_lies_together() -> None:
    across = [
        Measurement("cpu", 1, 100.0, 5000, global_batch=64),
        Measurement("cpu", 2, 190.0, 5000, global_batch=64),
        Measurement("cpu", 2, 40.0, 5000, global_batch=64, nodes=2),
    ]
    plan = decisions(crowded(*across))
    assert plan["beside"].action is Action.CHANGE
    assert plan["beside"].allocation == {"b": (1,)}
    assert "make room for grows" in plan["beside"].message
    assert plan["else"].action is Action.KEEP
