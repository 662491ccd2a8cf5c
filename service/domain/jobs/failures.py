"""Classification of failures: how a rank and a whole generation ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from headway.contract.runtime import (
    EXIT_DONE,
    EXIT_NEVER_RETRY,
    EXIT_RETRY,
    EXIT_STOPPED,
    KILLED_FOR_MEMORY,
    STORAGE_AWAY,
)
from headway.contract.views.jobs import JobProgress, Reason
from service.domain.jobs.missing_files import folder_advice
from service.domain.jobs.shell_errors import shell_advice
from service.domain.jobs.tracebacks import (
    left_for_a_peer,
    lost_a_peer,
    never_met,
    traceback_in,
    what_differs,
    why_retry,
)

_TEARDOWN_SIGNALS = frozenset({signal.SIGABRT, signal.SIGSEGV})
"""Signals that can kill an interpreter after its work is done, raised in threads of native libraries."""
_FATAL = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_SHELL_SIGNALS = {128 + number: number for number in _FATAL}
"""Exit codes by which a shell or a container reports that a signal killed its program: 137 for SIGKILL."""
AT_ONCE_S = 10.0
"""Run time in seconds below which a script that reports no progress has probably not trained at all."""
_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|\bOutOfMemoryError\b|^MemoryError\b|DefaultCPUAllocator: can't allocate memory|"
    + re.escape(KILLED_FOR_MEMORY)
)
"""Messages in a rank's output by which PyTorch, Python or the agent reports that memory ran out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """The end of one rank of a generation. If both code and signal are None, its cause is unknown."""

    rank: int
    exit_code: int | None
    signal: int | None
    stopped_by_agent: bool
    completed: bool
    log_tail: tuple[str, ...] = ()
    start_error: str | None = None
    """Reason that the agent could not start the rank; None if the rank ran. With a reason, the exit code says
    whether a retry may help, as a script's exit code does.
    """


class Ending(StrEnum):
    """Classification of the end of a rank or of a whole generation."""

    DONE = "done"
    STOPPED = "stopped"
    """The service or the agent stopped the rank, or the rank stopped at their request."""
    INFRASTRUCTURE = "infrastructure"
    """A cause outside the script: a kill from outside or the loss of the node. A script's own request for a
    retry counts too.
    """
    STORAGE = "storage"
    """Object storage did not answer. It counts in no retry budget, because only time helps."""
    USER_ERROR = "user_error"
    HOPELESS = "hopeless"
    """The script reported that starting it again cannot help."""


@dataclass(frozen=True, slots=True)
class EndVerdict:
    """The ending of a generation with its reason and message, as they are stored with the job."""

    ending: Ending
    reason: Reason
    message: str


def ending_of(exit_: RankExit) -> Ending:
    """Return the ending of one rank."""
    if exit_.completed and (exit_.exit_code == EXIT_DONE or killed_by(exit_) in _TEARDOWN_SIGNALS):
        return Ending.DONE
    if exit_.stopped_by_agent or exit_.exit_code == EXIT_STOPPED:
        # Exit code 0 after SIGTERM does not prove success: many scripts save their state and exit with 0. One
        # restart too many costs little; a false success would lose the remaining work.
        return Ending.STOPPED
    if exit_.exit_code == EXIT_DONE:
        return Ending.DONE
    if exit_.exit_code == EXIT_NEVER_RETRY:
        return Ending.HOPELESS
    if storage_away(exit_):
        return Ending.STORAGE
    if exit_.exit_code == EXIT_RETRY or exit_.exit_code is None or killed_by(exit_) is not None:
        return Ending.INFRASTRUCTURE
    return Ending.USER_ERROR


def storage_away(exit_: RankExit) -> str:
    """Return what the agent or the library said about object storage that did not answer; empty for any other end."""
    said = exit_.start_error if exit_.start_error is not None else why_retry(exit_.log_tail)
    return said if exit_.exit_code == EXIT_RETRY and STORAGE_AWAY in said else ""


def killed_by(exit_: RankExit) -> int | None:
    """Return the signal that ended the rank or the program in its shell; None for any other end."""
    return _SHELL_SIGNALS.get(exit_.exit_code) if exit_.exit_code is not None else exit_.signal


def left_unasked(exits: Sequence[RankExit]) -> bool:
    """Return True if ranks ended as though asked to stop although no agent had asked any of them.

    When an agent asks one rank to stop, the library stops all ranks. One `stopped_by_agent` therefore
    suffices.
    """
    left = [exit_ for exit_ in exits if exit_.exit_code == EXIT_STOPPED]
    return bool(left) and not any(exit_.stopped_by_agent for exit_ in left)


_WORST_FIRST = (
    Ending.HOPELESS,
    Ending.STORAGE,
    Ending.INFRASTRUCTURE,
    Ending.USER_ERROR,
    Ending.STOPPED,
    Ending.DONE,
)
"""Endings by precedence. Killing one rank makes its peers fail with errors of their own, so the kill
outweighs them. A rank that leaves because storage does not answer is lost to its peers, too.
"""


def judge(exits: Sequence[RankExit], *, uploaded: bool = True) -> EndVerdict:
    """Return the verdict on a generation from the ends of all its ranks. Without exits it counts as stopped.

    `uploaded` is False for a job without a folder, whose script may be missing for that reason.

    Ranks none of which has an error of its own, but that could not connect to each other, are no error of the script.
    All ranks leave together once they find that they differ, whatever ends some of them meanwhile. A rank that leaves
    because it lost a peer is no cause where the peer ended by an error of its own.
    """
    apart = [never_met(exit_.log_tail) for exit_ in exits if ending_of(exit_) is not Ending.STOPPED]
    if apart and apart[0] is not None and all(apart):
        return EndVerdict(Ending.INFRASTRUCTURE, Reason.UNREACHABLE, apart[0])
    asked = [exit_ for exit_ in exits if exit_.exit_code == EXIT_RETRY]
    if differs := next(filter(None, (what_differs(exit_.log_tail) for exit_ in asked)), None):
        return EndVerdict(Ending.INFRASTRUCTURE, Reason.REPLICAS_DIFFER, f"the ranks differ: {differs}")
    causes = _without_aftermath(exits)
    for ending in _WORST_FIRST:
        found = [exit_ for exit_ in causes if ending_of(exit_) is ending]
        if found:
            return _verdict(ending, min(found, key=_cause_order), uploaded=uploaded)
    return EndVerdict(Ending.STOPPED, Reason.PREEMPTED, "no rank had started")


def _without_aftermath(exits: Sequence[RankExit]) -> Sequence[RankExit]:
    """Return the exits without ranks that asked for a retry because of a lost peer, if an error of a peer's own explains the loss."""
    explained = any(
        ending_of(exit_) is Ending.USER_ERROR and not lost_a_peer(exit_.log_tail) for exit_ in exits
    )
    if not explained:
        return exits
    return [exit_ for exit_ in exits if exit_.exit_code != EXIT_RETRY or not left_for_a_peer(exit_.log_tail)]


def _cause_order(exit_: RankExit) -> tuple[bool, bool, int]:
    """Return the sort key by which the likely cause comes first: a lack of memory, an error of the rank
    itself, then the loss of a peer.
    """
    return not ran_out_of_memory(exit_), lost_a_peer(exit_.log_tail), exit_.rank


def _verdict(ending: Ending, exit_: RankExit, *, uploaded: bool) -> EndVerdict:
    if ending is Ending.DONE:
        return EndVerdict(ending, Reason.COMPLETED, "every rank finished")
    if ending is Ending.STOPPED:
        return EndVerdict(ending, Reason.PREEMPTED, "stopped on request")
    if ending is Ending.STORAGE:
        where = f"rank {exit_.rank} could not go on" if exit_.start_error is None else "could not be started"
        return EndVerdict(ending, Reason.STORAGE_UNAVAILABLE, f"{where}: {storage_away(exit_)}")
    if exit_.start_error is not None:
        hint = _folder_hint([exit_.start_error], uploaded=uploaded)
        return EndVerdict(ending, Reason.START_FAILED, f"could not be started: {exit_.start_error}{hint}")
    how = how_it_ended(exit_)
    if ending is Ending.INFRASTRUCTURE and exit_.exit_code == EXIT_RETRY:
        why = why_retry(exit_.log_tail)
        text = f"rank {exit_.rank} asked to be started again{f': {why}' if why else ''}"
        return EndVerdict(ending, Reason.RETRY_REQUESTED, text)
    if ending is Ending.INFRASTRUCTURE:
        return EndVerdict(ending, reason_of_loss(exit_), f"rank {exit_.rank} {how}")
    reason = Reason.OUT_OF_MEMORY if ran_out_of_memory(exit_) else Reason.USER_ERROR
    hint = _folder_hint(exit_.log_tail, uploaded=uploaded)
    return EndVerdict(ending, reason, _with_log(f"rank {exit_.rank} {how}", exit_.log_tail, hint))


def _folder_hint(lines: Sequence[str], *, uploaded: bool) -> str:
    advice = folder_advice(lines, uploaded=uploaded)
    return f"; {advice}" if advice else ""


def ran_out_of_memory(exit_: RankExit) -> bool:
    """Return True if the last lines of the rank say that the host or the device ran out of memory."""
    return any(_OUT_OF_MEMORY.search(line) for line in exit_.log_tail)


def reason_of_loss(exit_: RankExit) -> Reason:
    """Return the reason for a rank that was killed or lost: out of memory if its output says so, otherwise
    lost.
    """
    return Reason.OUT_OF_MEMORY if ran_out_of_memory(exit_) else Reason.RANK_LOST


def was_hung(verdict: EndVerdict, message: str) -> EndVerdict:
    """Return the verdict on ranks that were killed because they hung, with `message` as its explanation.

    The exits of these ranks are ignored, unless the job had finished or a retry cannot help.
    """
    if verdict.ending in {Ending.DONE, Ending.HOPELESS}:
        return verdict
    return EndVerdict(Ending.INFRASTRUCTURE, Reason.HUNG, message)


def without_progress(
    verdict: EndVerdict, exits: Sequence[RankExit], progress: JobProgress, ran_s: float
) -> EndVerdict:
    """Return the verdict with reason `NO_PROGRESS` for a job that is done but took no step as far as the
    service knows.

    The library always reports steps. For a script that reports nothing, only an end within `AT_ONCE_S` is
    suspicious.
    """
    trained = progress.samples > 0 or progress.first_samples is not None
    suspicious = progress.source is not None or ran_s < AT_ONCE_S
    if verdict.ending is not Ending.DONE or trained or not suspicious:
        return verdict
    lines = next((exit_.log_tail for exit_ in sorted(exits, key=lambda exit_: exit_.rank)), ())
    ran = f"{ran_s:.0f} s" if ran_s >= 1 else "less than 1 s"
    return EndVerdict(
        Ending.DONE,
        Reason.NO_PROGRESS,
        _with_log(f"every rank exited with code 0 after {ran}, and no step was reported", lines),
    )


def how_it_ended(exit_: RankExit) -> str:
    """Return the predicate of a sentence whose subject is the rank, such as "exited with code 1"."""
    number = killed_by(exit_)
    if number == signal.SIGKILL and ran_out_of_memory(exit_):
        return "was killed by the kernel, which was out of memory"
    if number is not None:
        behind_shell = "" if exit_.exit_code is None else f" (its shell exited with code {exit_.exit_code})"
        return f"was killed by {_signal_name(number)}{behind_shell}"
    if exit_.exit_code is None:
        return "ended; its exit status is unknown"
    return f"exited with code {exit_.exit_code}"


def _signal_name(number: int) -> str:
    """Return the name of a signal, or its number for real-time signals, which have no name in Python."""
    known = {int(one): one.name for one in signal.Signals}
    return known.get(number, f"signal {number}")


def _with_log(message: str, log_tail: Sequence[str], hint: str = "") -> str:
    """Return the message with the traceback, led by its exception; without a traceback, with the last lines
    of output. The hint ends the first line.
    """
    traceback = traceback_in(log_tail)
    if traceback:
        return "\n".join((f"{message}: {traceback[-1]}{hint}", *traceback))
    lines = [line for line in log_tail if line.strip()]
    advice = shell_advice(lines)
    message = f"{message}; {advice}" if advice else message
    message = f"{message}{hint}"
    return f"{message}; its last lines:\n" + "\n".join(lines) if lines else f"{message}, without output"
