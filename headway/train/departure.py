"""Ends of a rank's process other than the end of training: as ordered, or on a request to stop."""

from __future__ import annotations

from typing import NoReturn

from headway.contract.orders import Order
from headway.contract.runtime import EXIT_DONE, EXIT_STOPPED, Left, Stopped
from headway.train.checkpoint.replica import Place, Replica
from headway.train.checkpoint.saving import Saver
from headway.train.host.output import warn
from headway.train.membership.changes import Changes
from headway.train.membership.control import Mailbox
from headway.train.membership.meeting import PeersLost
from headway.train.membership.team import Team
from headway.train.state.sync import StateSync, leave, leave_for_retry


class Departure:
    """The end of this rank's process, with its state saved where no other rank keeps it."""

    def __init__(
        self,
        replica: Replica,
        team: Team,
        saver: Saver,
        mailbox: Mailbox,
        state_sync: StateSync,
        changes: Changes,
    ) -> None:
        self._replica = replica
        self._team = team
        self._saver = saver
        self._mailbox = mailbox
        self._state_sync = state_sync
        self._changes = changes

    def as_ordered(self, order: Order, place: Place, idle_s: float) -> NoReturn:
        """Leave, because this rank is not a member of the next generation. No peer waits for it.

        The last step was `idle_s` seconds ago.
        """
        peers = self._team.peers
        if peers is not None:
            peers.settle()
        together = self._saver.group is not None
        if self._team.replaces_everyone(order) and peers is not None and (peers.is_main or together):
            self._state_sync.save_for_successors(order, place, idle_s)
        self.as_left(order, place)

    def as_left(self, order: Order, place: Place) -> NoReturn:
        """Leave without saving, because peers have the state."""
        self._mailbox.send(Left, samples=place.samples, joined=order.generation)
        leave(EXIT_DONE)

    def on_request(self, place: Place, *, saves: bool) -> NoReturn:
        """Save the state and stop. If a peer is lost, each rank saves, because rank 0 may be the lost one."""
        self._team.leaves = True
        if not self._state_sync.has_state:
            leave(EXIT_STOPPED)
        peers = self._team.peers
        self._changes.stopping(peers)
        saved = self._saver.save(self._replica, place) if peers and saves else True
        try:
            outcomes = peers.gather(saved) if peers else [[self._save_alone(place)]]
        except PeersLost:
            outcomes = [[self._save_alone(place)]]
        if not all(saved for (saved,) in outcomes):
            leave_for_retry(self._saver.unsaved("the state could not be saved"))
        self._mailbox.send(Stopped, samples=place.samples)
        leave(EXIT_STOPPED)

    def _save_alone(self, place: Place) -> bool:
        if self._replica.is_sharded and not self._saver.has_saved(place):
            warn("this rank has only a part of the model, which it cannot save without its peers")
            return False
        return self._saver.save(self._replica, place, rank_alone=self._team.rank)
