"""Signals that a rank sends to itself at an exact place, so that a test can choose any moment."""

from __future__ import annotations

import json
import os
import signal


class Faults:
    """`FAULTS` is a JSON list of [rank, place, signal name]; a place is a number of loop bodies begun in
    this process, or "after E" for what follows the loop over the loader in epoch E."""

    def __init__(self, rank: int) -> None:
        wanted = json.loads(os.environ.get("FAULTS", "[]"))
        self._signals = {place: name for target, place, name in wanted if target == rank}
        self._bodies = 0

    def in_body(self) -> None:
        self._bodies += 1
        self._strike(self._bodies)

    def after_loop(self, epoch: int) -> None:
        self._strike(f"after {epoch}")

    def _strike(self, place: int | str) -> None:
        if place in self._signals:
            os.kill(os.getpid(), getattr(signal, self._signals[place]))
