"""Collection of the runs of this node that are not released yet."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from headway.contract.agents import Holding
from worker_agent.runs.reconcile import Phase, RunState
from worker_agent.runs.records import Run


class Runs:
    """Collection that one thread changes. Other threads may only call `holding`."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], Run] = {}
        self._holding: tuple[Holding, ...] = ()

    def __iter__(self) -> Iterator[Run]:
        """Iterate over a copy, so that additions and removals meanwhile are safe."""
        return iter(list(self._runs.values()))

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run: Run) -> bool:
        return self._runs.get((run.state.job_id, run.state.generation)) is run

    def add(self, run: Run) -> None:
        """Add a run that was accepted."""
        self._runs[run.state.job_id, run.state.generation] = run
        self.publish()

    def remove(self, run: Run) -> None:
        """Remove a run that was released."""
        del self._runs[run.state.job_id, run.state.generation]
        self.publish()

    def publish(self) -> None:
        """Update `holding`, after slots of a run became free."""
        self._holding = tuple(
            Holding(job_id=run.state.job_id, generation=run.state.generation)
            for run in self
            if run.state.slots
        )

    def holding(self) -> Sequence[Holding]:
        """Return the generations that hold slots."""
        return self._holding

    def states(self) -> list[RunState]:
        """Return the states on which `reconcile` decides."""
        return [run.state for run in self._runs.values()]

    def of(self, state: RunState) -> Run:
        """Return the run that has this state."""
        return self._runs[state.job_id, state.generation]

    def named(self, name: str) -> Run | None:
        """Return the run with this name in the launcher's messages, or None."""
        return next((run for run in self if run.folder.name == name), None)

    def held(self, job_id: str, *, newest: int = sys.maxsize, oldest: int = 0) -> list[Run]:
        """Return the runs of the job with a generation from `oldest` to `newest`."""
        return [
            run for run in self if run.state.job_id == job_id and oldest <= run.state.generation <= newest
        ]

    def with_processes(self) -> list[Run]:
        """Return the runs that the launcher was ordered to start and that are not gone."""
        return [run for run in self._runs.values() if run.state.phase is Phase.LIVE]
