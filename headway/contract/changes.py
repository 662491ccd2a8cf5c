"""Reasons of stops and membership changes, and the stop file, as a service tells them to agents and an agent to its ranks.

Standard library only, like `runtime`.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from enum import StrEnum

from headway.contract.values.checks import is_finite

STOP_FILE = "stop.json"
"""Name of the file in the control folder that the agent writes before SIGTERM: a rank in a collective runs no handler."""


class ChangeKind(StrEnum):
    """Kind of the reason for which ranks are stopped, or their number changes.

    DRAIN: an operator, or the end of its agent, clears a node. SPOT_NOTICE: a provider takes a machine away. BUDGET: money is
    spent. PRIORITY: slots go to other jobs. USER: a user asked for it. SCHEDULER: other slots or another batch are better.
    DEVICE: a device is faulty or slow. LOSS: a rank or its node is gone. TARGET: the job has reached its target. SIGNAL: a
    SIGTERM that no agent announced. OTHER: any other reason, also one that a newer version gives.
    """

    DRAIN = "drain"
    SPOT_NOTICE = "spot_notice"
    BUDGET = "budget"
    PRIORITY = "priority"
    USER = "user"
    SCHEDULER = "scheduler"
    DEVICE = "device"
    LOSS = "loss"
    TARGET = "target"
    SIGNAL = "signal"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> ChangeKind | None:
        return cls.OTHER if isinstance(value, str) else None


@dataclass(frozen=True)
class ChangeReason:
    """The reason of a stop or a change: its kind for programs, and a sentence for people."""

    kind: ChangeKind = ChangeKind.OTHER
    reason: str = ""


NO_REASON = ChangeReason()
"""The reason in a message that gives none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNotice:
    """The announcement of a stop: ranks are killed `grace_s` seconds after it is written.

    `kill_at_s` is that time on the host's boot-time clock; None in the notice of an older agent.
    """

    grace_s: float
    kill_at_s: float | None = None
    why: ChangeReason = NO_REASON

    def left_s(self, boot_s: float) -> float:
        """Return the seconds until the ranks are killed, `boot_s` after the start of the host."""
        if self.kill_at_s is None:
            return self.grace_s
        return min(max(0.0, self.kill_at_s - boot_s), self.grace_s)


def boot_clock_s() -> float:
    """Return the seconds since the host booted, including time asleep: the clock of `StopNotice.kill_at_s`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def stop_to_json(notice: StopNotice) -> str:
    """Return the text of the stop file."""
    fields = {"grace_s": notice.grace_s, "kill_at_s": notice.kill_at_s, **asdict(notice.why)}
    return json.dumps(fields)


def stop_from_json(text: str) -> StopNotice:
    """Read the notice in the text of a stop file. Unknown fields are ignored: a newer agent may write more.

    Raises:
        ValueError: the text holds none.
    """
    fields = json.loads(text)
    grace_s = fields.get("grace_s") if isinstance(fields, dict) else None
    if not is_finite(grace_s) or grace_s < 0:
        raise ValueError(f"not a grace period: {text[:80]!r}")
    kill_at_s = fields.get("kill_at_s")
    return StopNotice(
        grace_s=float(grace_s),
        kill_at_s=float(kill_at_s) if is_finite(kill_at_s) else None,
        why=reason_of(fields),
    )


def reason_of(fields: object) -> ChangeReason:
    """Return the reason in the fields of a control file; one of kind OTHER if they have none."""
    if not isinstance(fields, dict):
        return NO_REASON
    kind, reason = fields.get("kind"), fields.get("reason")
    return ChangeReason(
        ChangeKind(kind) if isinstance(kind, str) else ChangeKind.OTHER,
        reason if isinstance(reason, str) else "",
    )
