"""State of a policy across rounds: the stored JSON, and the history that a round passes to the policy.

The stored JSON has the time of the round (`at`), the position in the ledger (`ledger`), the ids of the jobs of
unknown length (`unsized`) and the policy's own state (`state`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from service.domain.allocation.inputs.round import Round
from service.domain.cluster.snapshot import LedgerTotals, Snapshot
from service.domain.jobs.job import Job, class_of
from service.domain.perf.convergence import LOSS, epoch_samples
from service.domain.policies.framework.policy import (
    Policy,
    RoundHistory,
    RoundInput,
    StatefulPolicy,
    TrainingReports,
)

_LONGEST_S = 3600.0
"""Maximum time in seconds between rounds; after a longer gap the spending in between is unknown."""
_LEDGER_WINDOW = timedelta(days=1)
"""Time after which the ledger query starts from a later hour."""


def advanced(policy: Policy, round_: Round) -> tuple[Policy, Mapping[str, Any]]:
    """Return the policy for this round, and the JSON to store for the next one; empty without state."""
    if not isinstance(policy, StatefulPolicy):
        return policy, {}
    now, spent = round_.snapshot.now, round_.snapshot.spent
    next_policy, state = policy.advance(round_.given, _history(round_))
    if not state:
        return next_policy, {}
    unsized = [job.id for job in round_.snapshot.jobs.values() if job.progress.work_total is None]
    return next_policy, {
        "at": now.isoformat(),
        "ledger": _ledger_after(spent, now),
        "unsized": sorted(unsized),
        "state": dict(state),
    }


def state_of(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the policy's own state."""
    state: Mapping[str, Any] = stored.get("state", {})
    return state


def _history(round_: Round) -> RoundHistory:
    stored = round_.snapshot.policy_state
    elapsed_s = _elapsed_s(stored, round_.snapshot.now)
    totals = [job.progress.work_end for job in round_.jobs]
    return RoundHistory(
        elapsed_s=elapsed_s,
        usd_per_h=_usd_per_h(round_.snapshot, round_.given, elapsed_s),
        job_ids=[job.id for job in round_.jobs],
        classes=[class_of(job.spec) for job in round_.jobs],
        samples=np.array([math.nan if total is None else float(total) for total in totals]),
        state=state_of(stored),
        ended=[(one.job_class, float(one.samples)) for one in round_.snapshot.ended],
        reports=_reports(round_.jobs),
    )


def _reports(jobs: Sequence[Job]) -> TrainingReports:
    """Return the reports of the scripts."""
    progress = [job.progress for job in jobs]
    return TrainingReports(
        done=np.array([float(one.work_done) for one in progress]),
        loss=np.array([one.metrics.get(LOSS, math.nan) for one in progress]),
        epoch_samples=np.array([epoch_samples(one) for one in progress]),
    )


def _usd_per_h(snapshot: Snapshot, given: RoundInput, elapsed_s: float) -> float:
    """Return the mean spending per hour since the previous round.

    The value is the increase of the ledger over that time, or the present cost of all held slots if the
    ledger was not queried yet. If nothing has a price, it is the number of held slots.
    """
    if not np.any(given.configurations.usd_per_h > 0):
        return float(len(snapshot.held))
    before = snapshot.policy_state.get("ledger", {})
    if (
        snapshot.spent is not None
        and elapsed_s > 0
        and before.get("since") == snapshot.spent.since.isoformat()
    ):
        usd = before.get("usd")
        if isinstance(usd, int | float):
            return max(0.0, snapshot.spent.usd - usd) / elapsed_s * 3600
    return sum(snapshot.usd_per_slot_h_of_key(key) for key in snapshot.held)


def _ledger_after(spent: LedgerTotals | None, now: datetime) -> dict[str, Any]:
    """Return the ledger position with which the next round compares.

    The starting hour of the ledger query is this hour at first, and advances once a day, so that sums stay
    small. The amount since a new starting hour is unknown until the next round.
    """
    if spent is not None and now - spent.since < _LEDGER_WINDOW:
        return {"since": spent.since.isoformat(), "usd": spent.usd}
    return {"since": hour_of(now).isoformat(), "usd": None}


def asked_since(stored: Mapping[str, Any]) -> datetime | None:
    """Return the hour from which this round queries the ledger, or None if the policy has no state yet."""
    try:
        return datetime.fromisoformat(stored["ledger"]["since"])
    except (KeyError, TypeError, ValueError):
        return None


def unsized_jobs(stored: Mapping[str, Any]) -> list[str]:
    """Return the ids of the jobs of unknown length in the previous round. Those that ended have a size now."""
    ids = stored.get("unsized")
    return [one for one in ids if isinstance(one, str)] if isinstance(ids, list) else []


def hour_of(moment: datetime) -> datetime:
    """Return the beginning of the hour of a time."""
    return moment.replace(minute=0, second=0, microsecond=0)


def _elapsed_s(stored: Mapping[str, Any], now: datetime) -> float:
    """Return the seconds since the previous round.

    The result is 0 without a previous round, after a gap that is too long, and if the previous time is in the
    future because a clock was set.
    """
    try:
        elapsed_s = (now - datetime.fromisoformat(stored["at"])).total_seconds()
    except (KeyError, TypeError, ValueError):
        return 0.0
    return elapsed_s if 0.0 <= elapsed_s <= _LONGEST_S else 0.0
