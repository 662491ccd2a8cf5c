"""Reported values of a script, sent to the log, to the service and to the job's trackers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from headway.contract.runtime import Metrics
from headway.train.data.reported_values import ReportedValues
from headway.train.host.environment import Environment
from headway.train.host.output import exit_actions, show, warn
from headway.train.membership.control import Mailbox
from headway.train.trackers import TrackedReport, senders


class ValueSender:
    """Sender of the values of all ranks, on the rank for which `is_main` is true.

    Raises:
        TrackerUnavailable: the job asks for a tracker whose package is not installed, or without its address.
    """

    def __init__(self, mailbox: Mailbox, environment: Environment, is_main: Callable[[], bool]) -> None:
        self.complete = False
        """True once training has finished all its epochs."""
        self.values = ReportedValues(self._send)
        """Reports of the script."""
        self._is_main = is_main
        self._mailbox = mailbox
        self._senders = senders(environment.trackers, environment)
        if self._senders:
            exit_actions.callback(self.close)
        exit_actions.callback(self.values.flush)

    def _send(self, report: TrackedReport) -> None:
        """Send the values of the report that are finite."""
        if not self._is_main():
            return
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


def number_of(value: Any) -> float:
    """Return the number that a script reports.

    Raises:
        TypeError, ValueError: the value is not a number.
    """
    return float(value.detach() if isinstance(value, torch.Tensor) else value)
