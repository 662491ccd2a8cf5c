"""When a job that failed is started again: what is forgiven, what is poison, and when ranks count as hung."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.contract.jobs import Reason
from headway.contract.spec import HungAfter

KEPT_FAILURES = 8
"""So many of a job's latest failures are remembered."""
FORGIVEN_RAN_S = 86_400.0
"""A script that says nothing of its samples, and that ran for so long, has got on."""
TAKEN_DOWN_WITHIN_S = 120.0
"""A node that is lost so soon after a job was started there may have been lost by it."""
TAKEN_DOWN_NODES = 3
ALIKE_FAILURES = KEPT_FAILURES
"""So many failures of the same kind in a row, none of which came further. With the pauses between them this takes two minutes
at least: a service that the script needs may be away for as long.
"""
_ITS_OWN_DOING = frozenset({Reason.USER_ERROR, Reason.OUT_OF_MEMORY, Reason.START_FAILED})
"""What a job does by itself. A rank that is killed from outside, or that asks to be started again, says nothing of it."""
_MOST_SAID = 200

AUTO_HUNG_S = 600.0
"""What most scripts do between two steps, an evaluation or a checkpoint, takes less. PyTorch gives a collective of GPUs as
long."""
AUTO_HUNG_STEPS = 50.0
TOLD_HUNG_STEPS = 5.0
"""A time that the job file gives is too short if a step takes longer: a slow step is not a hung one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failure after which a job was started anew, or was not."""

    reason: Reason
    said: str
    """`gist` of its message: alike for failures of the same kind."""
    ran_s: float
    """From the start of its last generation to the failure."""
    samples: int
    """How far training had come; 0 for a script that does not say."""
    checkpoint_samples: int | None
    """The newest checkpoint."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes that were lost."""
    furthest_samples: int = 0
    """How far training had ever come until then: at this failure, or at those before it that count, remembered or not."""


@dataclass(frozen=True, slots=True)
class HungLimits:
    """Ranks hang that took no step for `after_s`, or for `factor` times the usual step if that is longer.

    `when_still`: and whose main threads stay where they are meanwhile.
    """

    after_s: float
    factor: float
    when_still: bool


def hung_limits(hung_after: HungAfter) -> HungLimits | None:
    """What `hung_after` of a job file means; None: nobody looks."""
    if hung_after == "never":
        return None
    if hung_after == "auto":
        return HungLimits(AUTO_HUNG_S, AUTO_HUNG_STEPS, when_still=True)
    return HungLimits(hung_after, TOLD_HUNG_STEPS, when_still=False)


def gist(message: str) -> str:
    """The last line of a message with all numbers alike: addresses, process ids, ranks and times differ between tries."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", lines[-1] if lines else "")[:_MOST_SAID]


def with_failure(before: Sequence[Failure], failure: Failure) -> tuple[Failure, ...]:
    """The latest failures with one more."""
    furthest = max(failure.samples, _furthest(before))
    return (*before, replace(failure, furthest_samples=furthest))[-KEPT_FAILURES:]


def has_got_on(before: Sequence[Failure], failure: Failure) -> bool:
    """Whether the job has come further than at all failures before, for good: past a checkpoint. Then what failed before
    does not count any longer.

    One that dies at the same place again has not, however long it takes to come there.
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
    """Why a job must not be started again, whatever is left of its retries; None if it may. The last failure is the one at
    hand.
    """
    return _takes_nodes_down(failures) or _fails_alike(failures)


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
        f"nodes {', '.join(others)} and {last} were lost one after the other, each within {TAKEN_DOWN_WITHIN_S:.0f} s of "
        "its start there: it is not tried on yet another one"
    )


def _fails_alike(failures: Sequence[Failure]) -> str | None:
    alike = 0
    for failure in _without_progress(failures):
        if failure.reason not in _ITS_OWN_DOING or failure.said != failures[-1].said:
            break
        alike += 1
    if alike < ALIKE_FAILURES:
        return None
    return f"it failed in the same way {alike} times in a row, and came no further"


def _without_progress(failures: Sequence[Failure]) -> Sequence[Failure]:
    """The latest failures, newest first, back to the one since which training has not come further."""
    found: list[Failure] = []
    for failure in reversed(failures):
        if found and found[-1].samples > failure.samples:
            break
        found.append(failure)
    return found
