"""Sweeps for the tests of their page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from headway.contract.spec_sweep import Sweep
from headway.contract.views.jobs import JobState, Reason
from headway.contract.views.sweeps import SweepView, TrialView

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def trial_view(
    number: int, parameters: dict[str, Any], value: float | None = None, **fields: Any
) -> TrialView:
    """Return a trial that has ended after as many minutes as its number, unless its state is another."""
    state = fields.pop("state", JobState.SUCCEEDED)
    given = {
        "number": number,
        "job_id": f"j{number}",
        "name": f"digits-{number}",
        "state": state,
        "reason": Reason.SUBMITTED,
        "message": "completed",
        "parameters": parameters,
        "value": value,
        "finished_at": BEGAN + timedelta(minutes=number) if state is JobState.SUCCEEDED else None,
    }
    return TrialView.model_validate({**given, **fields})


def sweep_view(
    trials: Sequence[TrialView], parameters: dict[str, Any], best: int | None = None, /, **fields: Any
) -> SweepView:
    """Return a sweep of these trials that minimises `loss`, unless the fields say otherwise."""
    states: dict[JobState, int] = {}
    for one in trials:
        states[one.state] = states.get(one.state, 0) + 1
    return SweepView(
        id="s1",
        name="digits",
        project="vision",
        owner="ada",
        submitted_at=BEGAN,
        sweep=Sweep.model_validate({"parameters": parameters, "metric": "loss", **fields}),
        states=states,
        best=best,
        trials=list(trials),
    )
