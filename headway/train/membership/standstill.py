"""Standstills: a rank that waits for its peers far longer than a step takes says so, and a stop ends the wait.

A wait ends by itself when the peers are reached again. Evaluations, checkpoints, compilation and slow data are no waits for
peers, and a change of members forgets the steps before it begins.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headway.contract.changes import STOP_FILE, stop_from_json
from headway.contract.runtime import StandsStill
from headway.preemption import StopRequest
from headway.train.host.connections import retransmit_each_second, unanswered_hosts
from headway.train.host.output import warn
from headway.train.membership.control import Mailbox
from headway.train.membership.left_loop import BatchPosition, LoopLeft, find_left_batch
from headway.train.membership.meeting import PeersLost
from headway.train.membership.peers import Peers
from headway.train.membership.team import Team

LEAST_S = 15.0
"""Wait for peers that jitter of the network and of the hosts does not explain."""
LEAST_STEPS = 20.0
"""Multiple of the usual step time that extends `LEAST_S`."""
_KNOWN_AFTER = 5
"""Steps of a generation after which its usual step time is known."""
_REMEMBERED = 64
ABORTED_AFTER = 1 / 3
"""Share of the grace period that a stop leaves to the peers at least; the rest is for a checkpoint of this rank alone."""
SAVES_KEPT = 3.0
"""Multiple of the time of the last save that a wait for a slow peer leaves to a checkpoint, beside `MARGIN_S`."""
MARGIN_S = 5.0
_UNKNOWN_GRACE_S = 30.0
"""Grace period of a SIGTERM that no agent announced: the default of Kubernetes and torchrun."""
_LOST_AFTER_S = 0.5
"""Time for which a wait lasts after a peer's connection closed, so that the peer is lost: what had arrived ends it at once."""
_POLL_S = 0.2
_IMPATIENT_S = 1.0
"""Wait after which the connections are set to retransmit each second, and the interval at which new ones are."""
_MOST_HOSTS = 16
"""Unanswered hosts in a message."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A rank that has taken no step for `silent_s`, where one usually takes `usual_s`."""

    silent_s: float
    usual_s: float


class StepPace:
    """Steps of this rank in the present generation. Times are monotonic. Another thread may call `standing`."""

    def __init__(self) -> None:
        self.announced: Standing | None = None
        """The standstill that was reported last, until its end; None if there is none."""
        self._steps_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._ended_s: float | None = None

    def restart(self) -> None:
        """Forget the steps, because members have changed."""
        self._steps_s = deque(maxlen=_REMEMBERED)
        self._ended_s = self.announced = None

    def end(self, now_s: float, step_s: float | None) -> Standing | None:
        """Record the end of a step, and return the reported standstill that it ends; None without one.

        `step_s` is its time; None if it does not represent the usual one.
        """
        announced, self.announced = self.announced, None
        before_s, self._ended_s = self._ended_s, now_s
        if announced is not None:
            return Standing(now_s - (now_s if before_s is None else before_s), announced.usual_s)
        if step_s is not None:
            self._steps_s.append(step_s)
        return None

    def standing(self, now_s: float, waits_since_s: float | None) -> Standing | None:
        """Return the standstill of a rank that waits for its peers since `waits_since_s`; None if there is none yet.

        The limit grows by the time since the last step in which the rank itself was busy: then its peers may be, too, for
        example with an evaluation.
        """
        steps_s, ended_s = tuple(self._steps_s), self._ended_s
        if waits_since_s is None or now_s - waits_since_s < LEAST_S:
            return None
        if ended_s is None or len(steps_s) < _KNOWN_AFTER:
            return None
        usual_s = statistics.median(steps_s)
        busy_s = max(0.0, waits_since_s - ended_s)
        if now_s - waits_since_s < max(LEAST_S, LEAST_STEPS * usual_s) + busy_s:
            return None
        return Standing(now_s - ended_s, usual_s)


def must_abort(
    now_s: float,
    waits_since_s: float | None,
    stopped_s: float,
    grace_s: float,
    *,
    save_s: float | None = None,
    is_gone: Callable[[], bool] = lambda: False,
) -> bool:
    """Return True if a rank that was stopped at `stopped_s` has to give up its wait for peers. Times are monotonic.

    The stop takes effect at the end of a step, so both the stop and the wait have lasted for their share of the grace period.
    A peer whose host answers may only be slow: a rank whose last save took `save_s` waits for it as long as a save still fits
    into the grace period. `is_gone` tells whether the host of a peer does not answer; it is asked after the share.
    """
    share_s = ABORTED_AFTER * grace_s
    if waits_since_s is None or now_s - max(waits_since_s, stopped_s) < share_s:
        return False
    if save_s is None or now_s - stopped_s >= grace_s - SAVES_KEPT * save_s - MARGIN_S:
        return True
    return is_gone()


class PacedTraining(Protocol):
    """The training of this rank, of which the watch reads the steps."""

    evaluates: bool
    """True within a step with an evaluation."""
    left_alone: LoopLeft | None
    """Error by which training ends once its waits are aborted, because another rank has left the present batch."""
    pace: StepPace

    @property
    def in_step(self) -> tuple[float, BatchPosition] | None:
        """Monotonic begin and position of the step that this rank is in; None between two steps."""


class PeerLinks:
    """The connections of this rank with `peers`, as they were soon after the group was formed."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self._formed = peers.connected()
        self._closed: tuple[float, float] | None = None

    def is_lost(self, now_s: float, since_s: float | None) -> bool:
        """Return True if a peer has closed a connection while this rank waits for peers since `since_s`, and its wait went on."""
        if since_s is None or self.peers.connected() >= self._formed:
            self._closed = None
        elif self._closed is None or self._closed[1] != since_s:
            self._closed = now_s, since_s
        return self._closed is not None and now_s - self._closed[0] >= _LOST_AFTER_S


class StandstillWatch:
    """Thread that observes this rank's waits for its peers.

    Args:
        team: has the present peers.
        training: has the steps of this rank.
        stop: a request to stop that no agent announced.
        control: the control folder of the agent; None without one.
        save_s: the time of the last save; None if none is known.
    """

    def __init__(
        self,
        team: Team,
        mailbox: Mailbox,
        training: PacedTraining,
        stop: StopRequest,
        control: Path | None,
        save_s: Callable[[], float | None],
    ) -> None:
        self._team = team
        self._mailbox = mailbox
        self._training = training
        self._stop = stop
        self._save_s = save_s
        self._stop_file = str(control / STOP_FILE) if control is not None else None
        self._links: PeerLinks | None = None
        self._stopped: tuple[float, float] | None = None
        self._next_s = self._asked_s = 0.0
        self._unanswered: frozenset[str] = frozenset()

    def start(self) -> None:
        """Observe until the end of the process."""
        threading.Thread(target=self._watch, name="headway-standstill", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(_POLL_S)
            peers = self._team.peers
            if peers is None or peers.world_size == 1 or peers.aborted or self._team.leaves:
                continue  # once they leave, its peers wait for the rank that saves
            if self._links is None or self._links.peers is not peers:
                self._links = PeerLinks(peers)
            now_s, since_s = time.monotonic(), peers.waits.since_s()
            if self._ends_wait(now_s, since_s, self._links):
                self._abort(peers)
            elif self._is_left_alone(now_s, peers):
                peers.abort()  # training then names the rank that left
            elif since_s is not None and now_s - since_s >= _IMPATIENT_S and now_s >= self._next_s:
                self._next_s = now_s + _IMPATIENT_S
                retransmit_each_second()
                self._report(self._training.pace.standing(now_s, since_s))

    def _report(self, standing: Standing | None) -> None:
        """Report a standstill, and again when more hosts are known not to answer."""
        if standing is None or self._training.evaluates:
            return
        if self._training.pace.announced is None:
            self._unanswered = frozenset()
        unanswered = unanswered_hosts() | self._unanswered
        first = self._training.pace.announced is None and (self._team.rank == 0 or unanswered)
        if first or unanswered > self._unanswered:
            self._training.pace.announced, self._unanswered = standing, unanswered
            self._mailbox.send(
                StandsStill,
                silent_s=standing.silent_s,
                usual_s=standing.usual_s,
                unanswered=tuple(sorted(unanswered))[:_MOST_HOSTS],
            )

    def _ends_wait(self, now_s: float, since_s: float | None, links: PeerLinks) -> bool:
        """Return True if a stop was requested, and the wait for peers is too long or for a lost one."""
        received = self._stop.poll()
        if self._stopped is None:
            grace_s = _read_grace_s(self._stop_file) if self._stop_file is not None else None
            if grace_s is None and received:
                grace_s = _UNKNOWN_GRACE_S
            self._stopped = None if grace_s is None else (now_s, grace_s)
        if self._stopped is None or since_s is None:
            links.is_lost(now_s, None)
            return False
        return links.is_lost(now_s, since_s) or must_abort(
            now_s, since_s, *self._stopped, save_s=self._save_s(), is_gone=lambda: bool(unanswered_hosts())
        )

    def _is_left_alone(self, now_s: float, peers: Peers) -> bool:
        """Return True if another rank has left the batch of the step that this rank has been in for a second."""
        step, store = self._training.in_step, peers.store
        if step is None or store is None or now_s - max(step[0], self._asked_s) < _IMPATIENT_S:
            return False
        self._asked_s = now_s
        try:
            found = find_left_batch(store, step[1])
        except PeersLost:
            return False  # the step finds the loss
        self._training.left_alone = found
        return found is not None

    def _abort(self, peers: Peers) -> None:
        if self._team.peers is peers and not peers.aborted:
            warn(
                "a peer does not answer, and this rank is to stop: it leaves its step, to save its state alone"
            )
            peers.abort()


def _read_grace_s(path: str) -> float | None:
    """Return the grace period that the agent announced with a stop; None without a stop."""
    if not os.path.exists(path):  # noqa: PTH110  # five times a second, and pathlib takes three times as long
        return None
    try:
        return stop_from_json(Path(path).read_text(encoding="utf-8")).grace_s
    except (OSError, ValueError) as error:
        warn(f"the agent's stop cannot be read, and is tried again: {error}")
        return None
