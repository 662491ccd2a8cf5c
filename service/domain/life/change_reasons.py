"""Reasons of stops and changes, as ranks read them."""

from __future__ import annotations

from headway.contract.changes import ChangeKind, ChangeReason
from headway.contract.views.jobs import Reason

_KINDS = {
    Reason.NODE_DRAINED: ChangeKind.DRAIN,
    Reason.SPOT_RECLAIMED: ChangeKind.SPOT_NOTICE,
    Reason.BUDGET: ChangeKind.BUDGET,
    Reason.PREEMPTED: ChangeKind.PRIORITY,
    Reason.QUOTA: ChangeKind.PRIORITY,
    Reason.USER_REQUEST: ChangeKind.USER,
    Reason.BETTER_ALLOCATION: ChangeKind.SCHEDULER,
    Reason.BETTER_BATCH: ChangeKind.SCHEDULER,
    Reason.DEADLINE: ChangeKind.SCHEDULER,
    Reason.WAITING_FOR_CAPACITY: ChangeKind.SCHEDULER,
    Reason.BAD_DEVICE: ChangeKind.DEVICE,
    Reason.NODE_LOST: ChangeKind.LOSS,
    Reason.RANK_LOST: ChangeKind.LOSS,
    Reason.UNREACHABLE: ChangeKind.LOSS,
    Reason.TARGET_REACHED: ChangeKind.TARGET,
}
"""Kinds of the reasons for which the service stops or changes a job that trains; OTHER for the rest."""


def change_reason(reason: Reason, message: str) -> ChangeReason:
    """Return the reason of a stop or change as ranks read it."""
    return ChangeReason(_KINDS.get(reason, ChangeKind.OTHER), message)
