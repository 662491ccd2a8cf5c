"""Timely stop of runs on a host that the provider takes away, unless the service has moved them."""

from __future__ import annotations

import structlog

from headway.contract.changes import ChangeKind, ChangeReason
from worker_agent.host.folders import boot_s
from worker_agent.runs import reconcile as rules
from worker_agent.runs.reconcile import Phase
from worker_agent.runs.registry import Runs

_log = structlog.get_logger()

_TAKEN = ChangeReason(ChangeKind.SPOT_NOTICE, "the provider takes the machine away")


class Reclaim:
    """Announced end of the host. Times are those of the boot-time clock."""

    def __init__(self) -> None:
        self._noticed_s = 0.0
        self._reclaim_s: float | None = None

    def announced(self, reclaim_s: float) -> None:
        """Store that the host is taken away at `reclaim_s`."""
        self._noticed_s, self._reclaim_s = boot_s(), reclaim_s

    def stop_what_is_due(self, runs: Runs) -> None:
        """Stop the runs that have just enough time left for a checkpoint, even if the service does not answer."""
        if self._reclaim_s is None:
            return
        now_s = boot_s()
        for run in runs:
            due_s = rules.last_call_s(run.command.grace_s, self._noticed_s, self._reclaim_s)
            if now_s >= due_s and not run.state.ending and run.state.phase is not Phase.GONE:
                _log.warning("the host is taken away: stopping", run=run.folder.name)
                run.explain(_TAKEN)
                run.state = rules.reclaimed(run.state, reclaim_s=self._reclaim_s, now_s=now_s)
                run.save()
