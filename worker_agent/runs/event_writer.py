"""Reports on runs to the service: read from the run's folder, queued in the outbox."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from headway.contract.agents import (
    RankExited,
    RankMessage,
    RanksHung,
    RanksStarted,
    Released,
    StartFailed,
)
from headway.contract.runtime import (
    KILLED_FOR_MEMORY,
    CannotMeet,
    Completed,
    FirstStep,
    Hello,
    Left,
    Message,
    Ready,
    StandsStill,
    Stepped,
    Switched,
)
from worker_agent.host.folders import boot_s, read_json
from worker_agent.launcher.commandline import How
from worker_agent.link.messages import read_messages, size_bytes
from worker_agent.link.outbox import Outbox, ReadPosition
from worker_agent.link.redaction import HideAll, Redactor
from worker_agent.link.secrets import RunSecrets
from worker_agent.logs.pieces import tail
from worker_agent.logs.punch_hole import Holes
from worker_agent.runs.hung import Silence
from worker_agent.runs.memory_kills import MemoryKills, counter
from worker_agent.runs.printed_steps import PrintedSteps
from worker_agent.runs.reconcile import breaks_gang, failed
from worker_agent.runs.records import Run
from worker_agent.runs.stacks import add_to_log
from worker_agent.runs.step_meters import StepMeters

_log = structlog.get_logger()

_URGENT = (FirstStep, Ready, CannotMeet, Switched, Left, StandsStill)
"""Messages that are sent at once, because the service and the ranks wait for them."""
_KILLED_IN_SHELL = 128 + signal.SIGKILL
"""Exit code of a shell whose program was killed."""
_MOST_STACKS = 8
_STACK_CHARACTERS = 8192
"""Characters of each rank's stacks in a report; the rank's log has the full text."""


class EventWriter:
    """Writer of report entries about runs. Each fact is reported once; `Run` stores what was reported.

    `on_message` is called with every message of a rank. `secrets` masks the secrets in messages.
    """

    def __init__(
        self, outbox: Outbox, on_message: Callable[[Run, Message], None], secrets: RunSecrets
    ) -> None:
        self._outbox = outbox
        self._secrets = secrets
        self._on_message = on_message
        self._memory_kills = MemoryKills(counter())
        self._steps = StepMeters()
        self._printed = PrintedSteps()
        self._holes = Holes()

    def started(self, run: Run, how: How) -> None:
        """Report that all ranks of the run have a process."""
        if run.start_reported:
            return
        self._outbox.add(partial(RanksStarted, **_ids(run), how=how, pids=_pids(run)), urgent=True)
        run.start_reported = True
        run.save()
        _log.info("ranks started", run=run.folder.name, ranks=len(run.command.ranks), how=how)

    def start_failed(self, run: Run, message: str, *, retryable: bool) -> None:
        """Report that the run cannot start on this node."""
        draft = partial(StartFailed, **_ids(run), message=message, retryable=retryable)
        self._outbox.add(draft, urgent=True)
        run.start_reported = True
        run.save()
        _log.warning("start failed", run=run.folder.name, message=message, retryable=retryable)

    def hung(self, run: Run, silence: Silence, stacks: list[str]) -> None:
        """Report that the ranks of the run took no step for a long time, with their stacks."""
        redactor = self._redactor(run)
        bounded = [redactor.text(one)[:_STACK_CHARACTERS] for one in stacks[:_MOST_STACKS]]
        draft = partial(
            RanksHung, **_ids(run), silent_s=silence.silent_s, usual_s=silence.usual_s, stacks=bounded
        )
        self._outbox.add(draft, urgent=True)

    def messages(self, run: Run, *, last: bool = False) -> None:
        """Forward the messages that the ranks wrote since the last call.

        Messages wait until the ranks' secrets are known, except the `last` ones of a rank that has ended.
        """
        name = run.name
        if not last and self._secrets.redactor(name, has_secrets=bool(run.command.secrets)) is None:
            return
        for stepped in self._printed.look(run, time.time(), final=last):
            self._forward(run, 0, stepped, None)
        for rank, path in run.message_files:
            offset = self._outbox.position(name, rank)
            if size_bytes(path) == offset:
                continue
            for message, problem, behind in read_messages(
                Path(path), offset, rank=rank, generation=run.command.generation, live=run.command.live
            ):
                if message is None:
                    hidden = self._redactor(run).text(problem)
                    _log.warning("skipped a line of a rank", run=name, rank=rank, problem=hidden)
                    continue
                self._forward(run, rank, message, ReadPosition(name, rank, behind))
            self._holes.empty(path, offset)

    def exits(self, run: Run, *, gone: bool) -> bool:
        """Report ranks that ended since the last call, and return True if one of them broke the gang.

        If the run is `gone`, ranks without an exit record are reported as well.
        """
        failure = False
        for slot in run.command.ranks:
            if slot.rank in run.exits_reported:
                continue
            ended = read_json(run.folder.exit(slot.rank))
            if ended is None and gone and run.folder.pid(slot.rank).exists():
                ended = {"exit_code": None, "signal": None, "signalled": False}  # lost with its launcher
            if ended is not None:
                self.messages(run, last=True)  # messages of a rank are reported before its end
                failure = self._exited(run, slot.rank, ended) or failure
        return failure

    def slots_released(self, run: Run) -> frozenset[int]:
        """Report slots of a live run whose ranks are gone since the last call, and return these slots.

        The last slots of a run are released together with the run, after its output folder is saved. The
        caller removes the returned slots from the run's state, which records them.
        """
        freed = frozenset(
            slot.slot
            for slot in run.command.ranks
            if slot.slot in run.state.slots
            and slot.rank in run.exits_reported
            and run.folder.rank_gone(slot.rank).exists()
        )
        if freed == run.state.slots:
            return frozenset()
        if freed:
            self.slots_free(run.command.job_id, run.command.generation, freed)
            _log.info("slots released", run=run.folder.name, slots=sorted(freed))
        return freed

    def released(self, run: Run, *, older_stay: bool) -> None:
        """Report that nothing of the run is left.

        `older_stay`: another run of the job, of this generation's age or older, still has processes here. The
        report then releases only this run's slots.
        """
        self.messages(run, last=True)
        job_id, generation = run.command.job_id, run.command.generation
        if not older_stay:
            for number in sorted({generation, max(generation, run.release_as)}):
                self.nothing_held(job_id, number)
        elif run.state.slots:
            self.slots_free(job_id, generation, run.state.slots)
        self._outbox.forget(run.folder.name)
        self._steps.forget(run)
        self._printed.forget(run)

    def slots_free(self, job_id: str, generation: int, slots: Collection[int]) -> None:
        """Report that no process of exactly this generation of the job uses these slots."""
        draft = partial(Released, job_id=job_id, generation=generation, slots=sorted(slots))
        self._outbox.add(draft, urgent=True)

    def nothing_held(self, job_id: str, generation: int) -> None:
        """Report that no process of this generation of the job, or of an older one, is on this node."""
        self._outbox.add(partial(Released, job_id=job_id, generation=generation), urgent=True)

    def _forward(self, run: Run, rank: int, message: Message, position: ReadPosition | None) -> None:
        """Queue a message of the process that was started as `rank`; the message holds its present rank."""
        if isinstance(message, Stepped):
            for one in self._steps.take(run, message):
                self._forward(run, rank, one, position)
            return
        fields = self._redactor(run).fields({"type": message.TYPE, **asdict(message)})
        if isinstance(message, Completed):
            run.completed.add(rank)
            run.save()
        elif isinstance(message, Left):
            run.left.add(rank)
            run.save()
        elif isinstance(message, Hello):
            run.library = True
            run.save()
        elif isinstance(message, FirstStep | Switched) and not run.stepped:
            run.stepped = True
            run.save()
        self._on_message(run, message)
        draft = partial(RankMessage, **_ids(run), rank=rank, message=fields)
        self._outbox.add(draft, position, urgent=isinstance(message, _URGENT))

    def _exited(self, run: Run, rank: int, ended: dict[str, Any]) -> bool:
        code, number = ended["exit_code"], ended["signal"]
        completed = rank in run.completed
        over = completed or rank in run.left
        killed = number == signal.SIGKILL or code == _KILLED_IN_SHELL
        if killed and not ended["signalled"] and self._memory_kills.just_happened(boot_s()):
            add_to_log(run, rank, f"[headway] {KILLED_FOR_MEMORY}.\n")
        silent = not over and not run.stepped
        lines = tail(run.folder.log(rank)) if failed(code, completed=over) or silent else []
        lines = self._redactor(run).text("\n".join(lines)).split("\n") if lines else []
        draft = partial(
            RankExited,
            **_ids(run),
            rank=rank,
            exit_code=code,
            signal=number,
            stopped_by_agent=ended["signalled"],
            completed=completed,
            log_tail=lines,
        )
        self._outbox.add(draft, urgent=True)
        run.exits_reported.add(rank)
        run.save()
        _log.info("rank ended", run=run.folder.name, rank=rank, exit_code=code, signal=number)
        return breaks_gang(code, completed=over, signalled=ended["signalled"], library=run.library)

    def _redactor(self, run: Run) -> Redactor:
        """Return the redactor for the secrets of a run; while they are unknown, it masks everything."""
        known = self._secrets.redactor(run.name, has_secrets=bool(run.command.secrets))
        return HideAll() if known is None else known


def _pids(run: Run) -> dict[int, int]:
    """Return the process ids of the ranks, as far as the launcher has recorded them."""
    records = {slot.rank: read_json(run.folder.pid(slot.rank)) for slot in run.command.ranks}
    return {rank: record["pid"] for rank, record in records.items() if record is not None}


def _ids(run: Run) -> dict[str, Any]:
    return {"job_id": run.command.job_id, "generation": run.command.generation}
