"""Reported values of a script, sent to the log, to the service and to the job's trackers."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from headway.contract.runtime import Metrics
from headway.train.host.environment import Environment
from headway.train.host.output import exit_actions, show, warn
from headway.train.membership.control import Mailbox
from headway.train.trackers import TrackedReport, senders


class ValueSender:
    """Sender of rank 0's values.

    Raises:
        TrackerUnavailable: the job asks for a tracker whose package is not installed, or without its address.
    """

    def __init__(self, mailbox: Mailbox, environment: Environment) -> None:
        self.complete = False
        """True once training has finished all its epochs."""
        self._mailbox = mailbox
        self._senders = senders(environment.trackers, environment)
        if self._senders:
            exit_actions.callback(self.close)

    def send(
        self,
        values: Mapping[str, float],
        *,
        step: int,
        first_step: int,
        epoch: int,
        samples: int,
        generation: int,
        world_size: int,
    ) -> None:
        """Send the values that are finite. For the other arguments see `TrackedReport`."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        for name in values.keys() - finite.keys():
            warn(f"the metric {name} is {values[name]}, which is not finite, so it is left out")
        self._mailbox.send(Metrics, epoch=epoch, samples=samples, values=finite)
        if self._senders and finite:
            report = TrackedReport(
                step=step,
                first_step=first_step,
                epoch=epoch,
                samples=samples,
                generation=generation,
                world_size=world_size,
                at_s=time.time(),
                values=finite,
            )
            for sender in self._senders:
                sender.put(report)
        shown = "  ".join(f"{name} {value:.6g}" for name, value in finite.items())
        show(f"epoch {epoch}  samples {samples:,}  {shown}")

    def close(self) -> None:
        """Make the trackers write all waiting reports."""
        for sender in self._senders:
            sender.close(complete=self.complete)
