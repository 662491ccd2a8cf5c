"""When checkpoints are saved, and what is said about it."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from headway.contract.runtime import Checkpointed
from headway.train.checkpoint import Checkpoints, Schedule
from headway.train.control import Mailbox
from headway.train.position import Position
from headway.train.replica import Place, Replica


class Saver:
    """Saves checkpoints of one replica. One rank saves; each could, since each holds the same.

    `checkpoints` is None where nothing is to be kept: then every save has succeeded.
    """

    def __init__(self, checkpoints: Checkpoints | None, schedule: Schedule, mailbox: Mailbox) -> None:
        self.checkpoints = checkpoints
        self._schedule = schedule
        self._mailbox = mailbox
        self._saved: Position | None = None

    def due(self) -> bool:
        """Whether a periodic checkpoint should be saved."""
        return self.checkpoints is not None and self._schedule.due(time.monotonic())

    def restored(self, place: Place) -> None:
        """The newest checkpoint is that of this place."""
        self._saved = place.position

    def generation(self, generation: int) -> None:
        """From now on checkpoints are of this generation."""
        if self.checkpoints is not None:
            self.checkpoints = replace(self.checkpoints, generation=generation)

    def finish(self) -> None:
        """Wait for what is being saved."""

    def save(self, replica: Replica, place: Place) -> bool:
        """Save unless that is done. False, with a complaint, when it failed."""
        if self.checkpoints is None or self._saved == place.position:
            return True
        began = time.monotonic()
        try:
            state = replica.dump(place)
            uri = self.checkpoints.save(state, place.position, samples=place.samples)
        except OSError as error:
            complain(f"the checkpoint at {place.samples} samples could not be saved: {error}")
            return False
        finally:
            self._schedule.saved(time.monotonic(), time.monotonic() - began)
        self._saved = place.position
        self._mailbox.send(
            Checkpointed,
            uri=uri,
            samples=place.samples,
            size_bytes=len(state),
            save_s=time.monotonic() - began,
        )
        return True


def complain(sentence: str) -> None:
    """Say it where the job's log is."""
    sys.stderr.write(f"headway: {sentence}\n")
