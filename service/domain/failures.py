"""What the end of a generation means, from how its ranks ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from headway.contract.jobs import Reason
from headway.contract.runtime import (
    EXIT_DONE,
    EXIT_NEVER_RETRY,
    EXIT_RETRY,
    EXIT_STOPPED,
    KILLED_FOR_MEMORY,
)
from headway.contract.spec import Retry

_DIES_TIDYING_UP = frozenset({signal.SIGABRT, signal.SIGSEGV})
"""Signals that an interpreter may die of after its work is done (threads of native libraries)."""
_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|\bOutOfMemoryError\b|^MemoryError\b|DefaultCPUAllocator: can't allocate memory|"
    + re.escape(KILLED_FOR_MEMORY)
)
"""What PyTorch, Python and an agent say of it in a rank's output."""
_FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """How one rank of a generation ended. Both code and signal None: nobody knows."""

    rank: int
    exit_code: int | None
    signal: int | None
    stopped_by_agent: bool
    completed: bool
    log_tail: tuple[str, ...] = ()
    start_error: str | None = None
    """Set when the rank never ran: why its agent could not start it. The exit code then says, as a
    script's would, whether starting again may help."""


class Ending(StrEnum):
    """How a rank, or a whole generation, came to its end."""

    DONE = "done"
    STOPPED = "stopped"
    """By us, or at our request."""
    INFRASTRUCTURE = "infrastructure"
    """Not the script's fault: killed from outside, lost with its node, or it asked for a retry."""
    USER_ERROR = "user_error"
    HOPELESS = "hopeless"
    """The script said that starting it again cannot help."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The ending with its reason, for the job."""

    ending: Ending
    reason: Reason
    message: str


def ending_of(exit_: RankExit) -> Ending:
    """The ending of one rank."""
    if exit_.completed and (exit_.exit_code == EXIT_DONE or exit_.signal in _DIES_TIDYING_UP):
        return Ending.DONE
    if exit_.stopped_by_agent or exit_.exit_code == EXIT_STOPPED:
        # Code 0 after SIGTERM is no success: many scripts save and exit 0 then. Starting once more one
        # that was really done costs little; calling one done that was not loses its work.
        return Ending.STOPPED
    if exit_.exit_code == EXIT_DONE:
        return Ending.DONE
    if exit_.exit_code == EXIT_NEVER_RETRY:
        return Ending.HOPELESS
    if exit_.exit_code == EXIT_RETRY or exit_.exit_code is None:
        return Ending.INFRASTRUCTURE
    return Ending.USER_ERROR


def left_unasked(exits: Sequence[RankExit]) -> bool:
    """Whether ranks ended as if they had been asked to stop, and nobody had asked any of them.

    When one rank is asked, the library stops all of them: an agent's word for one of them is enough.
    """
    left = [exit_ for exit_ in exits if exit_.exit_code == EXIT_STOPPED]
    return bool(left) and not any(exit_.stopped_by_agent for exit_ in left)


_WORST_FIRST = (Ending.HOPELESS, Ending.INFRASTRUCTURE, Ending.USER_ERROR, Ending.STOPPED, Ending.DONE)
"""The root cause: a rank that was killed makes its peers fail with errors of their own, so the
kill outweighs them."""


def judge(exits: Sequence[RankExit]) -> Verdict:
    """What the ends of all ranks together mean. No exits at all count as stopped."""
    for ending in _WORST_FIRST:
        found = [exit_ for exit_ in exits if ending_of(exit_) is ending]
        if found:
            return _verdict(ending, min(found, key=lambda exit_: (not ran_out_of_memory(exit_), exit_.rank)))
    return Verdict(Ending.STOPPED, Reason.PREEMPTED, "no rank had started")


def _verdict(ending: Ending, exit_: RankExit) -> Verdict:
    if ending is Ending.DONE:
        return Verdict(ending, Reason.COMPLETED, "every rank finished")
    if ending is Ending.STOPPED:
        return Verdict(ending, Reason.PREEMPTED, "stopped on request")
    if exit_.start_error is not None:
        return Verdict(ending, Reason.START_FAILED, f"could not be started: {exit_.start_error}")
    how = how_it_ended(exit_)
    if ending is Ending.INFRASTRUCTURE and exit_.exit_code == EXIT_RETRY:
        return Verdict(ending, Reason.RETRY_REQUESTED, f"rank {exit_.rank} asked to be started again")
    if ending is Ending.INFRASTRUCTURE:
        return Verdict(ending, reason_of_loss(exit_), f"rank {exit_.rank} {how}")
    reason = Reason.OUT_OF_MEMORY if ran_out_of_memory(exit_) else Reason.USER_ERROR
    return Verdict(ending, reason, _with_log(f"rank {exit_.rank} {how}", exit_.log_tail))


def ran_out_of_memory(exit_: RankExit) -> bool:
    """Whether the rank's last lines say that there was no memory left, of the host or of the device."""
    return any(_OUT_OF_MEMORY.search(line) for line in exit_.log_tail)


def reason_of_loss(exit_: RankExit) -> Reason:
    """The reason for a rank that is simply gone."""
    return Reason.OUT_OF_MEMORY if ran_out_of_memory(exit_) else Reason.RANK_LOST


def was_hung(verdict: Verdict, message: str) -> Verdict:
    """The verdict about ranks that were killed since they hung, as `message` says: how they then ended says nothing, unless
    they had finished, or starting again cannot help.
    """
    if verdict.ending in {Ending.DONE, Ending.HOPELESS}:
        return verdict
    return Verdict(Ending.INFRASTRUCTURE, Reason.HUNG, message)


def how_it_ended(exit_: RankExit) -> str:
    """The rest of a sentence that begins with the rank."""
    if exit_.signal == signal.SIGKILL and ran_out_of_memory(exit_):
        return "was killed by the kernel, which had no memory left"
    if exit_.signal is not None:
        return f"was killed by {_signal_name(exit_.signal)}"
    if exit_.exit_code is None:
        return "ended unseen"
    return f"exited with code {exit_.exit_code}"


def _signal_name(number: int) -> str:
    """Its name; real-time signals have none in Python."""
    known = {int(one): one.name for one in signal.Signals}
    return known.get(number, f"signal {number}")


def _with_log(message: str, log_tail: Iterable[str]) -> str:
    lines = [line for line in log_tail if line.strip()]
    return f"{message}; its last lines:\n" + "\n".join(lines) if lines else f"{message}, without output"


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """Whether to start again, and not before when. `spent` and `budget` explain a refusal."""

    again: bool
    not_before: datetime
    spent: int
    budget: int


def decide_retry(
    ending: Ending, retry: Retry, *, infrastructure_failures: int, user_errors: int, now: datetime
) -> RetryDecision:
    """Whether a failed generation is started again. Counts include the failure at hand.

    The first retry is immediate; further ones wait 1, 2, 4, ... seconds, two minutes at most.
    """
    spent, budget = {
        Ending.INFRASTRUCTURE: (infrastructure_failures, retry.infrastructure),
        Ending.USER_ERROR: (user_errors, retry.user_errors),
    }.get(ending, (1, 0))
    wait_s = 0.0 if spent <= 1 else min(_FIRST_BACKOFF_S * 2.0 ** (spent - 2), LONGEST_BACKOFF_S)
    return RetryDecision(spent <= budget, now + timedelta(seconds=wait_s), spent, budget)


@dataclass(frozen=True, slots=True)
class Survival:
    """Whether the others go on in place without those that were lost, and if not, why."""

    in_place: bool
    why_not: str = ""


def is_loss(exit_: RankExit) -> bool:
    """Whether a process is simply gone: killed, or lost with its node. An error of its script is none."""
    return exit_.exit_code is None and not exit_.completed


def decide_survival(*, live: bool, survivors: int, counted: bool, failures: int, retry: Retry) -> Survival:
    """Whether `survivors` go on in place after a loss. `counted`: it is a failure beyond the `failures` so far."""
    if not live:
        return Survival(in_place=False, why_not="its script does not follow orders")
    if survivors == 0:
        return Survival(in_place=False, why_not="nobody is left who has its state")
    if counted and failures + 1 > retry.infrastructure:
        return Survival(
            in_place=False, why_not="it loses ranks again and again without getting on in between"
        )
    return Survival(in_place=True)


def counts_as_failure(samples: int, samples_at_loss: int | None) -> bool:
    """Whether a loss that is survived counts as a failure: only if nothing was trained since the one before.

    A job that gets on between losses may lose ranks for ever; one that dies in a loop may not.
    """
    return samples_at_loss is not None and samples <= samples_at_loss


_FIRST_GROWTH_BACKOFF_S = 10.0
LONGEST_GROWTH_BACKOFF_S = 600.0


def growth_backoff_s(failures: int) -> float:
    """Seconds until newcomers are tried again after `failures` switches in a row were given up."""
    doublings = min(failures - 1, 10)
    return float(min(_FIRST_GROWTH_BACKOFF_S * 2.0**doublings, LONGEST_GROWTH_BACKOFF_S))
