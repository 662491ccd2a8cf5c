"""Retry rules for a failed job: budget and backoff, failures that no longer count, jobs that must not be retried."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from headway.contract.spec import Retry
from headway.contract.views.jobs import Reason
from service.domain.jobs.failures import Ending

KEPT_FAILURES = 8
"""Number of a job's latest failures that are kept."""
FORGIVEN_RAN_S = 86_400.0
"""Run time in seconds after which a script that reports no samples is assumed to have progressed."""
TAKEN_DOWN_WITHIN_S = 120.0
"""Time in seconds after a job's start on a node within which it may have caused the loss of the node."""
TAKEN_DOWN_NODES = 3
"""Number of nodes lost in this way after which a job is not retried."""
ALIKE_FAILURES = KEPT_FAILURES
"""Number of identical failures in a row without progress after which a job is not retried. With the backoff
between them this takes at least two minutes. A service that the script needs may be away for that long.
"""
DIFFERING_FAILURES = 2
"""Number of generations in a row whose ranks differed alike from one checkpoint on, after which a job is not retried."""
_CAUSED_BY_THE_JOB = frozenset({Reason.USER_ERROR, Reason.OUT_OF_MEMORY, Reason.START_FAILED})
"""Reasons that a job causes itself. A rank that is killed from outside or requests a retry proves nothing
about the job.
"""
_GIST_CHARACTERS = 200
_FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure of a job, whether or not the job was started again after it."""

    reason: Reason
    said: str
    """Normalised message from `gist`: equal for failures of the same kind."""
    ran_s: float
    """Seconds from the start of the job's last generation to the failure."""
    samples: int
    """Samples trained until the failure; 0 for a script that does not report them."""
    checkpoint_samples: int | None
    """Samples in the latest checkpoint; None without one."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes that were lost."""
    furthest_samples: int = 0
    """Maximum of samples trained at this failure and at all earlier ones that count, kept or not."""


def gist(message: str) -> str:
    """Return the last line of a message with all numbers replaced by `#`.

    Addresses, process ids, ranks and times differ between attempts that fail for the same reason.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", lines[-1] if lines else "")[:_GIST_CHARACTERS]


def with_failure(before: Sequence[Failure], failure: Failure) -> tuple[Failure, ...]:
    """Return the latest failures with one more appended."""
    furthest = max(failure.samples, _furthest(before))
    return (*before, replace(failure, furthest_samples=furthest))[-KEPT_FAILURES:]


def has_progressed(before: Sequence[Failure], failure: Failure) -> bool:
    """Return True if the job saved a checkpoint beyond the furthest point of all earlier failures.

    Earlier failures then no longer count. A job that fails at the same point again has not progressed,
    however long it takes to get there. A script that reports neither samples nor checkpoints must have run
    for `FORGIVEN_RAN_S`.
    """
    if not before:
        return False
    furthest = _furthest(before)
    if failure.checkpoint_samples is not None:
        return failure.checkpoint_samples > furthest
    return furthest == failure.samples == 0 and failure.ran_s >= FORGIVEN_RAN_S


def _furthest(failures: Sequence[Failure]) -> int:
    return max((max(one.samples, one.furthest_samples) for one in failures), default=0)


def poison(failures: Sequence[Failure]) -> str | None:
    """Return the reason that a job must not be retried, whatever retries are left; None if it may be. The
    last failure is the present one.
    """
    return _takes_nodes_down(failures) or _differs_again(failures) or _fails_alike(failures)


def _takes_nodes_down(failures: Sequence[Failure]) -> str | None:
    nodes: dict[str, None] = {}
    for failure in _without_progress(failures):
        if not failure.nodes or failure.ran_s > TAKEN_DOWN_WITHIN_S:
            break
        nodes.update(dict.fromkeys(failure.nodes))
    if len(nodes) < TAKEN_DOWN_NODES:
        return None
    *others, last = sorted(nodes)
    return (
        f"nodes {', '.join(others)} and {last} were lost in turn, each within {TAKEN_DOWN_WITHIN_S:.0f} s of its "
        "start there; it is not started on another node"
    )


def _differs_again(failures: Sequence[Failure]) -> str | None:
    last = failures[-1] if failures else None
    if last is None or last.reason is not Reason.REPLICAS_DIFFER:
        return None
    alike = 0
    for failure in reversed(failures):
        if (failure.reason, failure.said, failure.checkpoint_samples) != (
            last.reason,
            last.said,
            last.checkpoint_samples,
        ):
            break
        alike += 1
    if alike < DIFFERING_FAILURES:
        return None
    return (
        "they differed in the same way before, and no checkpoint was saved since; set it alike on every rank"
    )


def _fails_alike(failures: Sequence[Failure]) -> str | None:
    alike = 0
    for failure in _without_progress(failures):
        if failure.reason not in _CAUSED_BY_THE_JOB or failure.said != failures[-1].said:
            break
        alike += 1
    if alike < ALIKE_FAILURES:
        return None
    return f"it failed in the same way {alike} times in a row without progress"


def _without_progress(failures: Sequence[Failure]) -> Sequence[Failure]:
    """Return the latest failures, newest first, as far back as training has not progressed since."""
    found: list[Failure] = []
    for failure in reversed(failures):
        if found and found[-1].samples > failure.samples:
            break
        found.append(failure)
    return found


def storage_retry(failures: Sequence[Failure], now: datetime) -> tuple[int, datetime]:
    """Return the number of latest failures in a row because storage did not answer, and the time of the next start.

    The first waits 1 s, and each further one twice as long, up to two minutes.
    """
    count = 0
    for failure in reversed(failures):
        if failure.reason is not Reason.STORAGE_UNAVAILABLE:
            break
        count += 1
    return count, now + timedelta(seconds=min(_FIRST_BACKOFF_S * 2.0 ** max(count - 1, 0), LONGEST_BACKOFF_S))


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """Decision on a retry and its earliest time. `spent` and `budget` explain a refusal."""

    again: bool
    not_before: datetime
    spent: int
    budget: int


def decide_retry(
    ending: Ending, retry: Retry, *, infrastructure_failures: int, user_errors: int, now: datetime
) -> RetryDecision:
    """Decide on a retry of a failed generation. Both counts include the present failure.

    The first retry is immediate. Later ones wait 1, 2, 4, … seconds, at most two minutes.
    """
    spent, budget = {
        Ending.INFRASTRUCTURE: (infrastructure_failures, retry.infrastructure),
        Ending.USER_ERROR: (user_errors, retry.user_errors),
    }.get(ending, (1, 0))
    wait_s = 0.0 if spent <= 1 else min(_FIRST_BACKOFF_S * 2.0 ** (spent - 2), LONGEST_BACKOFF_S)
    return RetryDecision(spent <= budget, now + timedelta(seconds=wait_s), spent, budget)
