"""Watch the steps of ranks: look where they are when none comes, say so to the service, and leave it to it what follows.

What is known of a run is what its ranks said, and that is in their files: an agent that takes over reads it there.
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
from worker_agent import hung, orders, stacks
from worker_agent.hung import Finding, Place
from worker_agent.messages import read_messages, size_bytes
from worker_agent.news import News
from worker_agent.outbox import Outbox
from worker_agent.reconcile import Phase
from worker_agent.records import Run
from worker_agent.secrets import RunSecrets

_log = structlog.get_logger()

_BETWEEN_LOOKS_S = 5.0
"""Ranks that may be at work on something else than a step are looked at so often."""
_ROOM_BYTES = 64 << 10
_RECALLED_BYTES = 128 << 10
"""An agent that takes over reads so much of what each rank said last."""


@dataclass(slots=True)
class _Suspicion:
    """Ranks that took no step for long are being looked at. `asked_s`: since when they write where they are."""

    asked_s: float
    looks: list[dict[int, Place]] = field(default_factory=list)


class Watcher:
    """Part of the supervisor's loop, which calls `look` many times a second."""

    def __init__(self, outbox: Outbox, secrets: RunSecrets) -> None:
        self._clock = hung.AwakeClock()
        self._watches: dict[str, hung.Watch] = {}
        self._suspicions: dict[str, _Suspicion] = {}
        self._last_words: dict[str, float] = {}
        """Runs that are killed after they have written their stacks, and when they were asked for them."""
        self._written: set[str] = set()
        """Runs whose logs say where they hung."""
        self.news = News(outbox, self._heard, secrets)

    def ordered(self, runs: Iterable[Run], command: OrderCommand) -> None:
        """Members of a job were ordered; these are its runs here."""
        for run in runs:
            self._watches[run.name] = hung.ordered(self._watch(run), command.generation)

    def last_words(self, run: Run) -> float:
        """The run is to be killed, with its stacks in the logs. How many seconds to wait for them."""
        if run.state.phase is not Phase.LIVE or run.name in self._written:
            return 0.0
        stacks.ask(run)
        self._last_words[run.name] = self._clock.now_s
        return stacks.WRITTEN_WITHIN_S

    def look(self, runs: Sequence[Run]) -> None:
        """See how these runs, which have processes, get on."""
        now_s = self._clock.tick(time.monotonic())
        for run in runs:
            if run.name in self._last_words:
                self._hear_last_words(run, now_s)
            limits = _limits(run)
            if limits is None or run.state.ending:
                self._suspicions.pop(run.name, None)
            else:
                self._look_at(run, limits, now_s)
        self._forget_all_but({run.name for run in runs})

    def _heard(self, run: Run, message: Message) -> None:
        self._watches[run.name] = hung.heard(self._watch(run), message, self._clock.now_s)

    def _watch(self, run: Run) -> hung.Watch:
        watch = self._watches.get(run.name)
        if watch is None:
            watch = self._watches[run.name] = _recall(run, self._clock.now_s)
        return watch

    def _look_at(self, run: Run, limits: hung.Limits, now_s: float) -> None:
        watch = self._watch(run)
        if not run.library and not limits.when_still:
            size = sum(size_bytes(str(run.folder.log(slot.rank))) for slot in run.command.ranks)
            watch = hung.printed(watch, size, run.command.generation, now_s)
            self._watches[run.name] = watch
        silence = hung.silence(watch, limits, now_s)
        suspicion = self._suspicions.get(run.name)
        if silence is None:
            self._suspicions.pop(run.name, None)
        elif disk_is_full(run.folder.control):
            self._watches[run.name] = hung.rested(watch, now_s)
            _log.warning("no step is heard of: the disk is full", run=run.name, silent_s=silence.silent_s)
        elif suspicion is None:
            stacks.ask(run)
            self._suspicions[run.name] = _Suspicion(now_s)
        elif now_s - suspicion.asked_s >= (_BETWEEN_LOOKS_S if suspicion.looks else stacks.WRITTEN_WITHIN_S):
            self._judge(run, suspicion, silence, limits, now_s)

    def _judge(
        self, run: Run, suspicion: _Suspicion, silence: hung.Silence, limits: hung.Limits, now_s: float
    ) -> None:
        """Take a look, and say what it shows once there were enough of them."""
        seen = stacks.read(run)
        suspicion.looks.append(stacks.places(run, seen))
        finding = hung.judged(suspicion.looks, _BETWEEN_LOOKS_S) if limits.when_still else Finding.HANGS
        if finding is Finding.UNCLEAR:
            stacks.ask(run)
            suspicion.asked_s = now_s
            return
        del self._suspicions[run.name]
        self._watches[run.name] = hung.rested(self._watches[run.name], now_s)
        if finding is Finding.WORKS:
            _log.info("no step for long, but its ranks are at work", run=run.name, silent_s=silence.silent_s)
            return
        _log.warning("ranks hang", run=run.name, silent_s=silence.silent_s, usual_s=silence.usual_s)
        self._write(run, seen, f"No step for {silence.silent_s:.0f} s")
        self._written.add(run.name)
        self.news.hung(run, silence, list(seen.values()))

    def _hear_last_words(self, run: Run, now_s: float) -> None:
        if now_s - self._last_words[run.name] >= stacks.WRITTEN_WITHIN_S / 2:
            self._write(run, stacks.read(run), "Killed on request of the service")
            del self._last_words[run.name]

    def _write(self, run: Run, seen: dict[int, str], why: str) -> None:
        # What its own size tells must not be taken for output of the script.
        before = sum(size_bytes(str(run.folder.log(rank))) for rank in seen)
        stacks.write_to_logs(run, seen, why)
        after = sum(size_bytes(str(run.folder.log(rank))) for rank in seen)
        self._watches[run.name] = hung.written(self._watch(run), after - before)

    def _forget_all_but(self, names: set[str]) -> None:
        if self._watches.keys() <= names:  # many times a second
            return
        tables: tuple[dict[str, Any], ...] = (self._watches, self._suspicions, self._last_words)
        for known in tables:
            for name in known.keys() - names:
                del known[name]
        self._written &= names


def _limits(run: Run) -> hung.Limits | None:
    """When the run counts as hung; None: nobody looks, or not here. Only the node of rank 0 hears of steps; of a script
    without the library, nobody knows what a step is unless its user gave a time for its output.
    """
    command: RunCommand = run.command
    if command.hung_after_s is None:
        return None
    if not run.library and (command.hung_when_still or all(slot.rank for slot in command.ranks)):
        return None
    return hung.Limits(
        after_s=command.hung_after_s, factor=command.hung_factor, when_still=command.hung_when_still
    )


def disk_is_full(folder: Path) -> bool:
    """Whether ranks may have steps to tell of, and nowhere to write it."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < _ROOM_BYTES


def _recall(run: Run, now_s: float) -> hung.Watch:
    """What the ranks of the run said last, before this agent heard of it."""
    watch = hung.ordered(hung.Watch(), orders.generation_in(run.folder.order))
    for rank, path in run.message_files:
        start = max(0, size_bytes(path) - _RECALLED_BYTES)
        for message, _, _ in read_messages(
            Path(path), start, rank=rank, generation=run.command.generation, live=run.command.live
        ):
            if message is not None:  # the first line may be half of one
                watch = hung.heard(watch, message, now_s)
    return watch
