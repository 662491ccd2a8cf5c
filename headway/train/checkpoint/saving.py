"""Saving and loading of checkpoints by the ranks, and the reports about it."""

from __future__ import annotations

import time
from typing import Any

from torch.distributed import ProcessGroup

from headway.contract.runtime import Checkpointed, CheckpointFailed
from headway.train.checkpoint.replica import Place, Replica, random_state, set_random_state
from headway.train.checkpoint.staging import UnreadableValue
from headway.train.checkpoint.store import Checkpoints, Failed, Saved, Schedule
from headway.train.data.position import Position
from headway.train.host.output import warn
from headway.train.membership.control import Mailbox


class Saver:
    """Saver and loader of the checkpoints of a replica.

    One rank saves a replicated state. Ranks with shards of the state save and load together, in `group`.
    Without `checkpoints` nothing is saved, and every save succeeds.
    """

    def __init__(self, checkpoints: Checkpoints | None, schedule: Schedule, mailbox: Mailbox) -> None:
        self.group: ProcessGroup | None = None
        self._checkpoints = checkpoints
        self._schedule = schedule
        self._mailbox = mailbox
        self._saved: Position | None = None
        self._problem = ""
        self._warm = False

    def check(self, replica: Replica) -> None:
        """Check at the start that the state can be saved.

        Raises:
            TypeError: an object's state cannot be saved.
        """
        if self._checkpoints is not None:
            replica.check()

    def warm(self, replica: Replica) -> None:
        """Prepare the first save of a generation while training continues. Later calls do nothing.

        Call it on a rank that saves, once its state is complete. If the state is sharded, every rank calls it at the same
        boundary: reading the state makes FSDP gather the parameters again.
        """
        if self._checkpoints is not None and not self._warm:
            self._checkpoints.warm(_contents(replica, Place()))
            self._warm = True

    def generation(self, generation: int) -> None:
        """Set the generation of further checkpoints."""
        self._warm = False
        if self._checkpoints is not None:
            self._checkpoints.generation = generation

    def lost(self) -> None:
        """Record the loss of a rank, which may shorten the checkpoint interval."""
        self._schedule.failed()

    def load(self, replica: Replica) -> tuple[Place, int] | None:
        """Load the newest checkpoint and return its position and generation; None without one.

        Raises:
            OSError: the storage does not answer.
            Fenced: a newer generation of the job runs.
        """
        if self._checkpoints is None:
            return None
        if self.group is None:
            found = self._checkpoints.read()
        else:
            found = self._checkpoints.load(_contents(replica, Place()), self.group)
            if found is None:
                # Torch created these states in order to load into them, by a step that Adam would count.
                for optimizer in replica.optimizers:
                    optimizer.state.clear()
        if found is None:
            return None
        place = replica.take_over(found.state)
        if self.group is None:
            set_random_state(found.state["random"])
        self._saved = place.position
        return place, found.name.generation

    @property
    def save_s(self) -> float | None:
        """Time of this rank's last save; None if it has not saved yet."""
        return self._schedule.total_s or None

    def due(self, losses_per_h: float | None) -> bool:
        """Return True if a periodic checkpoint is due, at the losses that the service now expects."""
        if self._checkpoints is None or self._checkpoints.busy:
            return False
        now = time.monotonic()
        self._schedule.expect(losses_per_h, now)
        return self._schedule.due(now)

    def begin(self, replica: Replica, place: Place, rank_alone: int | None = None) -> None:
        """Start a save. Training pauses only while the state is copied.

        Raises:
            TypeError: the state holds a value that could not be read back.
        """
        assert self._checkpoints is not None
        began = time.monotonic()
        try:
            self._checkpoints.begin(
                _contents(replica, place),
                place.position,
                samples=place.samples,
                group=self.group,
                stages=replica.stages if self.group is not None else 1,
                rank_alone=rank_alone,
            )
        except UnreadableValue as error:
            raise replica.explained(error) from error
        self._schedule.saved(time.monotonic(), time.monotonic() - began)

    def report_ended(self) -> None:
        """Report saves that have ended."""
        if self._checkpoints is not None:
            self._report(self._checkpoints.poll())

    def save(self, replica: Replica, place: Place, *, rank_alone: int | None = None) -> bool:
        """Save and wait for the result, unless this position is saved already. False if the save failed.

        `rank_alone` is this rank's number if other ranks may save at the same time without its knowledge.
        """
        if self._checkpoints is None:
            return True
        self.finish()
        if self._saved != place.position:
            self.begin(replica, place, rank_alone)
            self.finish()
        return self.has_saved(place)

    def has_saved(self, place: Place) -> bool:
        """Return True if this position was saved last, or nothing is saved at all."""
        return self._checkpoints is None or self._saved == place.position

    def unsaved(self, sentence: str) -> str:
        """Return the sentence with the reason why this rank's last save failed, if it did."""
        return f"{sentence}: {self._problem}" if self._problem else sentence

    def finish(self) -> None:
        """Wait for the saves in progress."""
        while self._checkpoints is not None and (outcome := self._checkpoints.wait()) is not None:
            self._report(outcome)

    def _report(self, outcome: Saved | Failed | None) -> None:
        if outcome is None:
            return
        if isinstance(outcome, Failed):
            warn(f"the checkpoint at {outcome.samples} samples could not be saved: {outcome.reason}")
            self._problem = _one_line(outcome.reason)
            self._mailbox.send(CheckpointFailed, samples=outcome.samples, why=self._problem)
            return
        self._problem = ""
        self._schedule.completed(outcome.total_s)
        self._saved = outcome.position
        self._mailbox.send(
            Checkpointed,
            uri=outcome.uri,
            samples=outcome.samples,
            size_bytes=outcome.size_bytes,
            save_s=outcome.save_s,
            total_s=outcome.total_s,
            every_s=self._schedule.interval_s(time.monotonic()),
        )


def _contents(replica: Replica, place: Place) -> dict[str, Any]:
    return {**replica.state(place), "random": random_state()}


def _one_line(reason: str) -> str:
    """Return the text on one line, cut to the length of a message."""
    return "".join(one if one.isprintable() else " " for one in reason)[:500]
