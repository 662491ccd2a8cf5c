"""What the service is told about a run: read from the run's folder, queued in the outbox."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection
from dataclasses import asdict
from datetime import datetime
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
    Completed,
    FirstStep,
    Hello,
    Left,
    Message,
    Ready,
    Switched,
)
from worker_agent.commandline import How
from worker_agent.folders import boot_s, read_json
from worker_agent.holes import Holes
from worker_agent.hung import Silence
from worker_agent.logs import tail
from worker_agent.memory_kills import MemoryKills, counter
from worker_agent.messages import read_messages, size_bytes
from worker_agent.outbox import Outbox, ReadPosition
from worker_agent.reconcile import breaks_gang, failed
from worker_agent.records import Run
from worker_agent.redaction import HideAll, Redactor
from worker_agent.secrets import RunSecrets
from worker_agent.stacks import add_to_log

_log = structlog.get_logger()

_URGENT = (FirstStep, Ready, Switched, Left)
"""The service, and with it the ranks, waits for these."""
_MOST_STACKS = 8
_STACK_CHARACTERS = 8192
"""Of each rank's stacks in a report; its log has them in full."""


class News:
    """Writes report entries about runs. Each fact is reported once; `Run` remembers which were.

    `heard` is called with every message of a rank. `secrets` are hidden in what ranks say.
    """

    def __init__(self, outbox: Outbox, heard: Callable[[Run, Message], None], secrets: RunSecrets) -> None:
        self._outbox = outbox
        self._secrets = secrets
        self._heard = heard
        self._memory_kills = MemoryKills(counter())
        self._holes = Holes()

    def started(self, run: Run, how: How) -> None:
        """All ranks of the run have a process."""
        if run.start_reported:
            return
        self._outbox.add(lambda sequence, at: RanksStarted(**_head(run, sequence, at), how=how), urgent=True)
        run.start_reported = True
        run.save()
        _log.info("ranks started", run=run.folder.name, ranks=len(run.command.ranks), how=how)

    def start_failed(self, run: Run, message: str, *, retryable: bool) -> None:
        """The run cannot start here."""
        self._outbox.add(
            lambda sequence, at: StartFailed(
                **_head(run, sequence, at), message=message, retryable=retryable
            ),
            urgent=True,
        )
        run.start_reported = True
        run.save()
        _log.warning("start failed", run=run.folder.name, message=message, retryable=retryable)

    def hung(self, run: Run, silence: Silence, stacks: list[str]) -> None:
        """The ranks of the run took no step for long; where they are is in `stacks`."""
        silent_s, usual_s = silence.silent_s, silence.usual_s
        redactor = self._redactor(run)
        bounded = [redactor.text(one)[:_STACK_CHARACTERS] for one in stacks[:_MOST_STACKS]]
        self._outbox.add(
            lambda sequence, at: RanksHung(
                **_head(run, sequence, at), silent_s=silent_s, usual_s=usual_s, stacks=bounded
            ),
            urgent=True,
        )

    def messages(self, run: Run, *, last: bool = False) -> None:
        """Forward what the ranks wrote since the last time. It waits until their secrets are known, but for their `last` words."""
        name = run.name
        if not last and self._secrets.redactor(name, has_secrets=bool(run.command.secrets)) is None:
            return
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
        """Report ranks that ended since the last time; whether one of them broke the gang.

        Of a run that is `gone`, those that nobody saw end are reported as well.
        """
        failure = False
        for slot in run.command.ranks:
            if slot.rank in run.exits_reported:
                continue
            ended = read_json(run.folder.exit(slot.rank))
            if ended is None and gone and run.folder.pid(slot.rank).exists():
                ended = {"exit_code": None, "signal": None, "signalled": False}  # lost with its launcher
            if ended is not None:
                self.messages(run, last=True)  # what it said comes before how it ended
                failure = self._exited(run, slot.rank, ended) or failure
        return failure

    def slots_released(self, run: Run) -> frozenset[int]:
        """Report the slots of ranks of a live run that are gone since the last time; which these are.

        The caller takes them out of the run's state, which is what remembers them.
        """
        freed = frozenset(
            slot.slot
            for slot in run.command.ranks
            if slot.slot in run.state.slots
            and slot.rank in run.exits_reported
            and run.folder.rank_gone(slot.rank).exists()
        )
        if freed:
            self.slots_free(run.command.job_id, run.command.generation, freed)
            _log.info("slots released", run=run.folder.name, slots=sorted(freed))
        return freed

    def released(self, run: Run, *, older_stay: bool) -> None:
        """Nothing of the run is left. `older_stay`: something of an older run, or of one to be released with it, is."""
        self.messages(run, last=True)
        job_id, generation = run.command.job_id, run.command.generation
        if not older_stay:
            for number in sorted({generation, max(generation, run.release_as)}):
                self.nothing_held(job_id, number)
        elif run.state.slots:
            self.slots_free(job_id, generation, run.state.slots)
        self._outbox.forget(run.folder.name)

    def slots_free(self, job_id: str, generation: int, slots: Collection[int]) -> None:
        """No process of exactly this generation of the job is on these slots."""
        self._outbox.add(
            lambda sequence, at: Released(
                sequence=sequence, job_id=job_id, generation=generation, at=at, slots=sorted(slots)
            ),
            urgent=True,
        )

    def nothing_held(self, job_id: str, generation: int) -> None:
        """No process of this generation of the job, nor of an older one, is here."""
        self._outbox.add(
            lambda sequence, at: Released(sequence=sequence, job_id=job_id, generation=generation, at=at),
            urgent=True,
        )

    def _forward(self, run: Run, rank: int, message: Message, position: ReadPosition) -> None:
        """Queue what the process said that was started as `rank`; what it is called by now is in the message."""
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
        self._heard(run, message)
        self._outbox.add(
            lambda sequence, at: RankMessage(**_head(run, sequence, at), rank=rank, message=fields),
            position,
            urgent=isinstance(message, _URGENT),
        )

    def _exited(self, run: Run, rank: int, ended: dict[str, Any]) -> bool:
        code, number = ended["exit_code"], ended["signal"]
        completed = rank in run.completed
        over = completed or rank in run.left
        if number == signal.SIGKILL and not ended["signalled"] and self._memory_kills.just_happened(boot_s()):
            add_to_log(run, rank, f"[headway] {KILLED_FOR_MEMORY}.\n")
        lines = tail(run.folder.log(rank)) if failed(code, completed=over) else []
        lines = self._redactor(run).text("\n".join(lines)).split("\n") if lines else []
        self._outbox.add(
            lambda sequence, at: RankExited(
                **_head(run, sequence, at),
                rank=rank,
                exit_code=code,
                signal=number,
                stopped_by_agent=ended["signalled"],
                completed=completed,
                log_tail=lines,
            ),
            urgent=True,
        )
        run.exits_reported.add(rank)
        run.save()
        _log.info("rank ended", run=run.folder.name, rank=rank, exit_code=code, signal=number)
        return breaks_gang(code, completed=over, signalled=ended["signalled"], library=run.library)

    def _redactor(self, run: Run) -> Redactor:
        """What hides the secrets of a run; everything, as long as they are not known."""
        known = self._secrets.redactor(run.name, has_secrets=bool(run.command.secrets))
        return HideAll() if known is None else known


def _head(run: Run, sequence: int, at: datetime) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "job_id": run.command.job_id,
        "generation": run.command.generation,
        "at": at,
    }
