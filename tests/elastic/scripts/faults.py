"""Signals that a rank sends to itself at an exact place, so that a test can choose any moment."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from headway.train import Run


class Faults:
    """`FAULTS` is a JSON list of [rank, place, signal name]; a place is a number of loop bodies begun in
    this process, or "after E" for what follows the loop over the loader in epoch E.

    In the folder `STEPS_ALLOWED` the file `allowed` says how many bodies may begin on rank 0, whichever process that
    is; `taken` has one character for each that has, and `waiting` says after how many it last had to wait.
    """

    def __init__(self, run: Run) -> None:
        wanted = json.loads(os.environ.get("FAULTS", "[]"))
        self._signals = {place: name for target, place, name in wanted if target == run.rank}
        self._bodies = 0
        self._run = run
        folder = os.environ.get("STEPS_ALLOWED")
        self._folder = Path(folder) if folder else None

    def in_body(self) -> None:
        self._bodies += 1
        if self._folder is not None and self._run.is_main:
            self._wait_for_leave(self._folder)
        self._strike(self._bodies)

    def _wait_for_leave(self, folder: Path) -> None:
        taken = folder / "taken"
        begun = taken.stat().st_size if taken.exists() else 0
        if begun >= self._allowed(folder):
            (folder / "waiting").write_text(str(begun))
        while begun >= self._allowed(folder):
            time.sleep(0.001)
        with taken.open("a") as file:
            file.write(".")

    @staticmethod
    def _allowed(folder: Path) -> int:
        return int((folder / "allowed").read_text())

    def after_loop(self, epoch: int) -> None:
        self._strike(f"after {epoch}")

    def _strike(self, place: int | str) -> None:
        if place in self._signals:
            os.kill(os.getpid(), getattr(signal, self._signals[place]))
