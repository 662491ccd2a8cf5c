"""Notices to an agent that is a batch job of Slurm or a pod: the signal before its end, and Slurm's time limit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headway.contract.agents import InterruptionKind
from headway.errors import HeadwayError
from worker_agent.host.metadata import Notice

_LIMIT_NOTICE_S = 180.0
"""Notice of the time limit in seconds, or a quarter of a shorter limit, so that other nodes can take over before it."""

_LEVELS = {"switch.node": "rack", "block.node": "nvlink"}
"""Level of the part before the node in an address of the topology plugin: a leaf switch, or a block with its own NVLink domain."""
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")


@dataclass(frozen=True, slots=True)
class PilotLimits:
    """Times that Slurm or Kubernetes gives a pilot. `ends_at` is None if its time is not limited, or not known."""

    kill_wait_s: float
    ends_at: datetime | None
    notice_s: float = _LIMIT_NOTICE_S


class Pilot:
    """Batch job of Slurm, or pod, around this agent: SIGKILL follows `kill_wait_s` after SIGTERM.

    Slurm signals all processes of the job, Kubernetes the first of the container.
    """

    def __init__(self, limits: PilotLimits, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._limits = limits
        self._now = now
        self._killed_at: datetime | None = None

    @property
    def ends(self) -> bool:
        """Return whether Slurm or Kubernetes has begun to end the pilot."""
        return self._killed_at is not None

    def terminated(self) -> None:
        """Record SIGTERM. A second one, as after a partition's `GraceTime`, changes nothing. Safe in a signal handler."""
        if self._killed_at is None:
            self._killed_at = self._now() + timedelta(seconds=self._limits.kill_wait_s)

    def notices(self) -> list[Notice]:
        """Return the notice of the pilot's end, once it has begun or its time limit is near."""
        if self._killed_at is not None:
            return [Notice(InterruptionKind.TERMINATE, "terminate", self._killed_at)]
        ends_at = self._limits.ends_at
        if ends_at is not None and self._now() >= ends_at - timedelta(seconds=self._limits.notice_s):
            return [Notice(InterruptionKind.TERMINATE, "time limit", ends_at)]
        return []

    def close(self) -> None:
        """Do nothing: there is no connection."""


def pilot_limits(env: Mapping[str, str]) -> PilotLimits:
    """Return the limits of the pilot from the variables of its script and of Slurm.

    Raises:
        HeadwayError: a variable is not a number.
    """
    kill_wait_s = _number(env, "HEADWAY_KILL_WAIT_S")
    started_at, ends_at = _times(env)
    notice_s = _LIMIT_NOTICE_S
    if started_at is not None and ends_at is not None:
        notice_s = min(_LIMIT_NOTICE_S, (ends_at - started_at).total_seconds() / 4)
    return PilotLimits(30.0 if kill_wait_s is None else kill_wait_s, ends_at, notice_s)


def _times(env: Mapping[str, str]) -> tuple[datetime | None, datetime | None]:
    """Return start and end of the job: as `squeue` prints them in UTC, else from the variables of newer Slurm."""
    printed = env.get("HEADWAY_PILOT_TIMES", "").split()
    if len(printed) == 2:
        return _moment(printed[0]), _moment(printed[1])
    started_s, ends_s = _number(env, "SLURM_JOB_START_TIME"), _number(env, "SLURM_JOB_END_TIME")
    return (
        datetime.fromtimestamp(started_s, UTC) if started_s else None,
        datetime.fromtimestamp(ends_s, UTC) if ends_s else None,
    )


def _moment(text: str) -> datetime | None:
    """Return a time that Slurm prints, or None where it has none."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None


def labels(env: Mapping[str, str]) -> dict[str, str]:
    """Return the topology label of the node from Slurm's topology plugin; none if the plugin names no switch or block."""
    parts, pattern = env.get("SLURM_TOPOLOGY_ADDR", "").split("."), env.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    level = next((its for ending, its in _LEVELS.items() if pattern.endswith(ending)), None)
    return {level: parts[-2]} if level is not None and len(parts) > 1 and _LABEL.fullmatch(parts[-2]) else {}


def _number(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name)
    if not text:
        return None
    try:
        number = float(text)
    except ValueError as error:
        raise HeadwayError(f"{name}: {text!r} is not a number of seconds.") from error
    return max(0.0, number)
