"""Reported values of a script, sent to the log, to the service and to the job's trackers."""

from __future__ import annotations

import math
from dataclasses import replace

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

    def send(self, report: TrackedReport) -> None:
        """Send the values of the report that are finite."""
        values = report.values
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        for name in values.keys() - finite.keys():
            warn(f"the metric {name} is {values[name]}, which is not finite, so it is left out")
        self._mailbox.send(Metrics, epoch=report.epoch, samples=report.samples, values=finite)
        for sender in self._senders if finite else ():
            sender.put(replace(report, values=finite))
        shown = "  ".join(f"{name} {value:.6g}" for name, value in finite.items())
        show(f"epoch {report.epoch}  samples {report.samples:,}  {shown}")

    def close(self) -> None:
        """Make the trackers write all waiting reports."""
        for sender in self._senders:
            sender.close(complete=self.complete)
