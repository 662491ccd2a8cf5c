"""What the service is told about a run: read from the run's folder, queued in the outbox."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

import structlog

from headway.contract.agents import RankExited, RankMessage, RanksStarted, Released, StartFailed
from headway.contract.runtime import Completed, Hello, Message, message_file
from worker_agent.commandline import How
from worker_agent.folders import read_json
from worker_agent.logs import tail
from worker_agent.messages import read_messages
from worker_agent.outbox import Outbox, ReadPosition
from worker_agent.reconcile import breaks_gang, failed
from worker_agent.records import Run

_log = structlog.get_logger()


class News:
    """Writes report entries about runs. Each fact is reported once; `Run` remembers which were."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

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

    def messages(self, run: Run) -> None:
        """Forward what the ranks wrote since the last time."""
        name = run.folder.name
        for slot in run.command.ranks:
            path = run.folder.control / message_file(slot.rank)
            offset = self._outbox.position(name, slot.rank)
            generation = run.command.generation
            for message, problem, behind in read_messages(
                path, offset, rank=slot.rank, generation=generation
            ):
                if message is None:
                    _log.warning("skipped a line of a rank", run=name, rank=slot.rank, problem=problem)
                    continue
                self._forward(run, message, ReadPosition(name, slot.rank, behind))

    def exits(self, run: Run) -> bool:
        """Report ranks that ended since the last time; whether one of them broke the gang."""
        gone = run.folder.gone.exists()  # before the exits, which are written before it
        failure = False
        for slot in run.command.ranks:
            if slot.rank in run.exits_reported:
                continue
            ended = read_json(run.folder.exit(slot.rank))
            if ended is None and gone and run.folder.pid(slot.rank).exists():
                ended = {"exit_code": None, "signal": None, "signalled": False}  # lost with its launcher
            if ended is not None:
                self.messages(run)  # what it said comes before how it ended
                failure = self._exited(run, slot.rank, ended) or failure
        return failure

    def released(self, run: Run) -> None:
        """Nothing of the run is left."""
        self.messages(run)
        generation = max(run.command.generation, run.release_as)
        self.nothing_held(run.command.job_id, generation)
        self._outbox.forget(run.folder.name)

    def nothing_held(self, job_id: str, generation: int) -> None:
        """No process of this generation of the job, nor of an older one, is here."""
        self._outbox.add(
            lambda sequence, at: Released(sequence=sequence, job_id=job_id, generation=generation, at=at),
            urgent=True,
        )

    def _forward(self, run: Run, message: Message, position: ReadPosition) -> None:
        fields = {"type": message.TYPE, **asdict(message)}
        if isinstance(message, Completed):
            run.completed.add(message.rank)
            run.save()
        elif isinstance(message, Hello):
            run.library = True
            run.save()
        self._outbox.add(
            lambda sequence, at: RankMessage(**_head(run, sequence, at), message=fields), position
        )

    def _exited(self, run: Run, rank: int, ended: dict[str, Any]) -> bool:
        code, number = ended["exit_code"], ended["signal"]
        completed = rank in run.completed
        lines = tail(run.folder.log(rank)) if failed(code, completed=completed) else []
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
        return breaks_gang(code, completed=completed, signalled=ended["signalled"], library=run.library)


def _head(run: Run, sequence: int, at: datetime) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "job_id": run.command.job_id,
        "generation": run.command.generation,
        "at": at,
    }
