"""The steps that a test allows rank 0 of a job (`scripts/faults.py`)."""

from __future__ import annotations

from pathlib import Path


class AllowedSteps:
    """The number of loop bodies that rank 0 may begin, whichever process that is. `folder` is the job's `STEPS_ALLOWED`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._allowed = 0

    def add(self, steps: int) -> None:
        """Allow so many more."""
        self._allowed += steps
        file = self._folder / "allowed"
        file.with_suffix(".new").write_text(str(self._allowed))
        file.with_suffix(".new").rename(file)

    @property
    def all_taken(self) -> bool:
        """True if all allowed bodies have begun, and rank 0 waits in the next one."""
        taken, waiting = self._taken(), self._folder / "waiting"
        return taken >= self._allowed and waiting.exists() and waiting.read_text() == str(taken)

    def _taken(self) -> int:
        file = self._folder / "taken"
        return len(file.read_text()) if file.exists() else 0
