"""Changes of members and stops as a script learns of them: values, and callbacks before and after."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from headway.contract.changes import (
    STOP_FILE,
    ChangeKind,
    ChangeReason,
    boot_clock_s,
    reason_of,
    stop_from_json,
)
from headway.contract.orders import Order
from headway.errors import HeadwayError
from headway.preemption import StopRequest
from headway.train.host.output import warn
from headway.train.membership.meeting import PeersLost
from headway.train.membership.peers import Peers
from headway.train.membership.team import Team

_UNANNOUNCED = ChangeReason(ChangeKind.SIGNAL, "SIGTERM from outside of Headway")
_NOT_STOPPED = 2**62
"""Time left of a rank that nobody stopped, in milliseconds."""
_NO_LIMIT = 2**61
"""Time left of a rank that a signal without a known grace period stopped, in milliseconds."""


class CallbackFailed(HeadwayError):
    """Error: a callback of `run.before_change` or `run.after_change` has raised an error."""

    code = "CALLBACK_FAILED"


@dataclass(frozen=True, slots=True)
class Preemption:
    """A stop of the whole job, on which its ranks have agreed.

    `kind` and `reason` are the same on every rank. `deadline_s` is the time by `time.monotonic()` at which the first rank is
    killed; None: not known.
    """

    kind: ChangeKind
    reason: str
    deadline_s: float | None

    @property
    def left_s(self) -> float | None:
        """Seconds until the deadline; None if it is not known."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - time.monotonic())


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of members, or a stop of the whole job, as one of its ranks sees it.

    `new_world_size` is 0 in a stop. `old_rank` is None for a process that joins, and `new_rank` for one that leaves.
    `joined` and `left` count processes.
    """

    kind: ChangeKind
    reason: str
    old_world_size: int
    new_world_size: int
    old_rank: int | None
    new_rank: int | None
    joined: int
    left: int


Callback: TypeAlias = Callable[[Change], object]


class Changes:
    """The changes of members and the stop of this process, with the script's callbacks.

    Args:
        team: has the members before and after a change.
        stop: a request to stop that no agent announced.
        control: the control folder of the agent; None without one.
    """

    def __init__(self, team: Team, stop: StopRequest, control: Path | None) -> None:
        self.preemption: Preemption | None = None
        """The stop on which the ranks have agreed; None before."""
        self.before: list[Callback] = []
        self.after: list[Callback] = []
        self._team = team
        self._stop = stop
        self._stop_file = control / STOP_FILE if control is not None else None
        self._old_rank: int | None = None

    def begin(self, order: Order | None) -> None:
        """Note the members that a change ends, and call the callbacks before it. Without an order a peer was lost."""
        self._team.note_members()
        self._old_rank = self._team.rank if self._team.peers is not None else None
        if order is not None and not order.lost and self._team.peers is not None:
            self._call(self.before, "before_change", self._change_to(order.members, order.why))

    def complete(self, *, lost: bool) -> None:
        """Call the callbacks after a change, whose members train together from now on; not if none of the old ones stays."""
        why = self._team.why
        if lost and why.kind is ChangeKind.OTHER:
            why = ChangeReason(ChangeKind.LOSS, why.reason)
        if self._team.members_before is not None:
            self._call(self.after, "after_change", self._change_to(self._team.members, why))

    def stopping(self, peers: Peers | None) -> None:
        """Agree with the peers on the reason and deadline of a stop, and call the callbacks before it."""
        self.preemption = self._agree(peers)
        size = self._team.world_size
        change = Change(
            kind=self.preemption.kind,
            reason=self.preemption.reason,
            old_world_size=size,
            new_world_size=0,
            old_rank=self._team.rank,
            new_rank=None,
            joined=0,
            left=size,
        )
        self._call(self.before, "before_change", change)

    def _change_to(self, members: Mapping[str, int], why: ChangeReason) -> Change:
        old, new = self._team.members_before or frozenset(), members.keys()
        return Change(
            kind=why.kind,
            reason=why.reason,
            old_world_size=len(old),
            new_world_size=len(new),
            old_rank=self._old_rank,
            new_rank=members.get(self._team.id),
            joined=len(new - old),
            left=len(old - new),
        )

    def _agree(self, peers: Peers | None) -> Preemption:
        """Return the earliest end of any rank with its reason, the same on every rank unless a peer is lost."""
        why, left_ms = self._announced()
        if peers is not None:
            with suppress(PeersLost):  # the ranks that remain find the loss again when they save
                everyone = [left for (left,) in peers.gather(left_ms)]
                source = everyone.index(min(everyone))
                why = reason_of(json.loads(peers.bytes_from(source, json.dumps(asdict(why)).encode())))
                left_ms = everyone[source]
        deadline_s = time.monotonic() + left_ms / 1000 if left_ms < _NO_LIMIT else None
        return Preemption(why.kind, why.reason, deadline_s)

    def _announced(self) -> tuple[ChangeReason, int]:
        """Return the reason of this rank's own stop, and the milliseconds that it leaves."""
        if self._stop_file is not None and self._stop_file.exists():
            try:
                notice = stop_from_json(self._stop_file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                warn(f"the reason of the stop cannot be read: {error}")
            else:
                return notice.why, int(1000 * notice.left_s(boot_clock_s()))
        return _UNANNOUNCED, _NO_LIMIT if self._stop.received else _NOT_STOPPED

    def _call(self, callbacks: list[Callback], where: str, change: Change) -> None:
        for callback in callbacks:
            try:
                callback(change)
            except Exception as error:
                name = getattr(callback, "__qualname__", repr(callback))
                raise CallbackFailed(
                    f"CALLBACK_FAILED: {name}, a callback of run.{where}, raised {type(error).__name__}: {error}.",
                    "See its traceback above, and mend the callback.",
                ) from error
