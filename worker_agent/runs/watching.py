"""Detection of ranks that take no step: inspect their stacks, and report to the service, which decides what follows.

All knowledge of a run comes from its ranks' messages. These are in files, so a restarted agent reads them
there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from headway.contract.agents import OrderCommand, RunCommand
from headway.contract.runtime import Message
from worker_agent.link.messages import read_messages, size_bytes
from worker_agent.link.outbox import Outbox
from worker_agent.link.secrets import RunSecrets
from worker_agent.runs import hung, orders, stacks
from worker_agent.runs.event_writer import EventWriter
from worker_agent.runs.hung import HangFinding, ThreadSample
from worker_agent.runs.reconcile import Phase
from worker_agent.runs.records import Run

_log = structlog.get_logger()

_SAMPLE_EVERY_S = 5.0
"""Seconds between two samples of ranks that may be at work on something other than a step."""
_MIN_FREE_BYTES = 64 << 10
_RECALLED_BYTES = 128 << 10
"""Bytes at the end of each rank's messages that a restarted agent reads."""


@dataclass(slots=True)
class _Suspicion:
    """Investigation of ranks that took no step for long. `requested_s` is the time of the last request for stacks."""

    requested_s: float
    samples: list[dict[int, ThreadSample]] = field(default_factory=list)


class Watcher:
    """Detector of hung ranks. The supervisor's loop calls `check` many times a second."""

    def __init__(self, outbox: Outbox, secrets: RunSecrets) -> None:
        self._clock = hung.AwakeClock()
        self._watches: dict[str, hung.StepWatch] = {}
        self._suspicions: dict[str, _Suspicion] = {}
        self._requested_s: dict[str, float] = {}
        """Time at which the stacks of a run were requested, for runs that are killed once they are written."""
        self._logged: set[str] = set()
        """Runs whose logs contain the stacks of a hang."""
        self.events = EventWriter(outbox, self._on_message, secrets)

    def ordered(self, runs: Iterable[Run], command: OrderCommand) -> None:
        """Record that members of a job were ordered. `runs` are the job's runs on this node."""
        for run in runs:
            self._watches[run.name] = hung.after_order(self._watch(run), command.generation)

    def request_stacks(self, run: Run) -> float:
        """Request the stacks of a run that is to be killed, and return the seconds to wait for them."""
        if run.state.phase is not Phase.LIVE or run.name in self._logged:
            return 0.0
        stacks.request(run)
        self._requested_s[run.name] = self._clock.now_s
        return stacks.WRITTEN_WITHIN_S

    def check(self, runs: Sequence[Run]) -> None:
        """Check the progress of these runs, which have processes."""
        now_s = self._clock.tick(time.monotonic())
        for run in runs:
            if run.name in self._requested_s:
                self._log_requested_stacks(run, now_s)
            limits = _limits(run)
            if limits is None or run.state.ending:
                self._suspicions.pop(run.name, None)
            else:
                self._check_run(run, limits, now_s)
        self._forget_all_but({run.name for run in runs})

    def _on_message(self, run: Run, message: Message) -> None:
        self._watches[run.name] = hung.after_message(self._watch(run), message, self._clock.now_s)

    def _watch(self, run: Run) -> hung.StepWatch:
        watch = self._watches.get(run.name)
        if watch is None:
            watch = self._watches[run.name] = _recall(run, self._clock.now_s)
        return watch

    def _check_run(self, run: Run, limits: hung.Limits, now_s: float) -> None:
        watch = self._watch(run)
        if not run.library and not limits.when_still:
            size = sum(size_bytes(str(run.folder.log(slot.rank))) for slot in run.command.ranks)
            watch = hung.after_output(watch, size, run.command.generation, now_s)
            self._watches[run.name] = watch
        silence = hung.silence(watch, limits, now_s)
        suspicion = self._suspicions.get(run.name)
        if silence is None:
            self._suspicions.pop(run.name, None)
        elif disk_is_full(run.folder.control):
            self._watches[run.name] = hung.restarted(watch, now_s)
            _log.warning(
                "no step is reported, because the disk is full", run=run.name, silent_s=silence.silent_s
            )
        elif suspicion is None:
            stacks.request(run)
            self._suspicions[run.name] = _Suspicion(now_s)
        elif now_s - suspicion.requested_s >= (
            _SAMPLE_EVERY_S if suspicion.samples else stacks.WRITTEN_WITHIN_S
        ):
            self._judge(run, suspicion, silence, limits, now_s)

    def _judge(
        self, run: Run, suspicion: _Suspicion, silence: hung.Silence, limits: hung.Limits, now_s: float
    ) -> None:
        """Take a sample, and act on the finding once there are enough samples."""
        found = stacks.read(run)
        suspicion.samples.append(stacks.sample_threads(run, found))
        finding = hung.judge(suspicion.samples, _SAMPLE_EVERY_S) if limits.when_still else HangFinding.HANGS
        if finding is HangFinding.UNCLEAR:
            stacks.request(run)
            suspicion.requested_s = now_s
            return
        del self._suspicions[run.name]
        self._watches[run.name] = hung.restarted(self._watches[run.name], now_s)
        if finding is HangFinding.WORKS:
            _log.info(
                "no step for a long time, but the ranks are working", run=run.name, silent_s=silence.silent_s
            )
            return
        _log.warning("ranks hang", run=run.name, silent_s=silence.silent_s, usual_s=silence.usual_s)
        self._write(run, found, f"No step for {silence.silent_s:.0f} s")
        self._logged.add(run.name)
        self.events.hung(run, silence, list(found.values()))

    def _log_requested_stacks(self, run: Run, now_s: float) -> None:
        if now_s - self._requested_s[run.name] >= stacks.WRITTEN_WITHIN_S / 2:
            self._write(run, stacks.read(run), "Killed on request of the service")
            del self._requested_s[run.name]

    def _write(self, run: Run, found: dict[int, str], why: str) -> None:
        # The agent's own text in a log must not count as output of the script.
        before = sum(size_bytes(str(run.folder.log(rank))) for rank in found)
        stacks.write_to_logs(run, found, why)
        after = sum(size_bytes(str(run.folder.log(rank))) for rank in found)
        self._watches[run.name] = hung.after_own_output(self._watch(run), after - before)

    def _forget_all_but(self, names: set[str]) -> None:
        if self._watches.keys() <= names:  # called many times a second
            return
        tables: tuple[dict[str, Any], ...] = (self._watches, self._suspicions, self._requested_s)
        for known in tables:
            for name in known.keys() - names:
                del known[name]
        self._logged &= names


def _limits(run: Run) -> hung.Limits | None:
    """Return the limits after which the run counts as hung, or None if this node does not watch it.

    Only the node of rank 0 gets the steps. Steps of a script without the library are unknown, so it is
    watched only if its user set a time for its output.
    """
    command: RunCommand = run.command
    if command.hung_after_s is None:
        return None
    if not run.library and (command.hung_when_still or all(slot.rank for slot in command.ranks)):
        return None
    starts_job = not command.joins and any(slot.rank == 0 for slot in command.ranks)
    return hung.Limits(
        after_s=command.hung_after_s,
        factor=command.hung_factor,
        when_still=command.hung_when_still,
        from_start=starts_job and not command.hung_when_still,
    )


def disk_is_full(folder: Path) -> bool:
    """Return True if the disk is too full for ranks to write their messages."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < _MIN_FREE_BYTES


def _recall(run: Run, now_s: float) -> hung.StepWatch:
    """Return the watch from the ranks' last messages before this agent started."""
    order = orders.read(run.folder.order)
    watch = hung.after_order(hung.StepWatch(alive_s=now_s), 0 if order is None else order.generation)
    for rank, path in run.message_files:
        start = max(0, size_bytes(path) - _RECALLED_BYTES)
        for message, _, _ in read_messages(
            Path(path), start, rank=rank, generation=run.command.generation, live=run.command.live
        ):
            if message is not None:  # the first line may be incomplete
                watch = hung.after_message(watch, message, now_s)
    return watch
