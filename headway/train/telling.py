"""What a script reports goes to people: into the log, to the service, and to the trackers that the job asks for."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from headway.contract.runtime import Metrics
from headway.train.control import Mailbox
from headway.train.environment import Environment
from headway.train.output import complain, ending, show
from headway.train.trackers import Report, senders


class Teller:
    """Tells of rank 0's values, as they come.

    Raises:
        TrackerUnavailable: the job asks for a tracker whose package is not installed, or without its address.
    """

    def __init__(self, mailbox: Mailbox, environment: Environment) -> None:
        self.complete = False
        """Whether training is over, with all its epochs."""
        self._mailbox = mailbox
        self._senders = senders(environment.trackers, environment)
        if self._senders:
            ending.before(self.close)

    def tell(
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
        """Tell of them, but for those that are not finite. For the other arguments see `Report`."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        for name in values.keys() - finite.keys():
            complain(f"the metric {name} is {values[name]} and is left out")
        self._mailbox.send(Metrics, epoch=epoch, samples=samples, values=finite)
        if self._senders and finite:
            report = Report(
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
        """Have the trackers write what is waiting."""
        for sender in self._senders:
            sender.close(complete=self.complete)
