"""Client methods about sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway._lazy import lazy
from headway.client.calls import Calls, api_path
from headway.contract.views.jobs import TERMINAL_STATES, CancelRequest, JobPatch, Page
from headway.http import Timer

if TYPE_CHECKING:
    from headway.contract.views import sweeps as sweep_models
    from headway.contract.views.sweeps import SweepSummary, SweepView
else:
    sweep_models = lazy("headway.contract.views.sweeps")

_GROUP_TIMEOUT_S = 60.0
"""Timeout of a change of all trials, which takes seconds for hundreds of them."""


class SweepCalls(Calls):
    """Methods about sweeps. A sweep is named by its id, its name (the newest of that name) or a view."""

    _timer: Timer

    def sweeps(self, *, project: str | None = None) -> Iterator[SweepSummary]:
        """Yield sweeps, newest first, fetching pages on demand."""
        return self._pages(api_path("sweeps"), Page[sweep_models.SweepSummary], {"project": project})

    def sweep(self, sweep: str | SweepSummary) -> SweepView:
        """Return a sweep with its trials and the best of them."""
        return self._get(_path(sweep), sweep_models.SweepView)

    def sweep_csv(self, sweep: str | SweepSummary) -> str:
        """Return the trials of a sweep as CSV: states, times, parameters, best values and latest metrics."""
        return self._http.request("GET", _path(sweep, "results")).content.decode()

    def cancel_sweep(self, sweep: str | SweepSummary, *, force: bool = False) -> SweepView:
        """Cancel every trial that has not ended. Ranks get their grace period for a last checkpoint unless `force`."""
        return self._change(sweep, "cancel", CancelRequest(force=force).model_dump())

    def pause_sweep(self, sweep: str | SweepSummary) -> SweepView:
        """Stop every trial that has not ended, which may save a checkpoint, take its slots and keep it."""
        return self._change(sweep, "pause")

    def resume_sweep(self, sweep: str | SweepSummary) -> SweepView:
        """Let every paused trial compete for slots again."""
        return self._change(sweep, "resume")

    def set_sweep_priority(self, sweep: str | SweepSummary, priority: int) -> SweepView:
        """Set the priority of every trial that has not ended, from 0 to 100."""
        body = JobPatch(priority=priority).model_dump()
        return self._send("PATCH", _path(sweep), sweep_models.SweepView, json=body, timeout=_GROUP_TIMEOUT_S)

    def wait_sweep(self, sweep: str | SweepSummary, *, every_s: float = 2.0) -> SweepView:
        """Wait until every trial has ended, asking every `every_s` seconds, and return the sweep.

        Raises:
            ServiceUnavailableError: the service does not answer. The trials continue.
        """
        view = self.sweep(sweep)
        while not TERMINAL_STATES.issuperset(view.states):
            self._timer.sleep(every_s)
            view = self.sweep(view)
        return view

    def _change(
        self, sweep: str | SweepSummary, action: str, body: dict[str, bool] | None = None
    ) -> SweepView:
        return self._post(_path(sweep, action), sweep_models.SweepView, json=body, timeout=_GROUP_TIMEOUT_S)


def _path(sweep: str | SweepSummary, *rest: str) -> str:
    return api_path("sweeps", sweep if isinstance(sweep, str) else sweep.id, *rest)
