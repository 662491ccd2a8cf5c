"""Checkpoints from which a job that has ended continues."""

from __future__ import annotations

from dataclasses import dataclass

from headway.contract.views.stored_files import CheckpointView


@dataclass(frozen=True, slots=True)
class Restorable:
    """The newest complete checkpoint of a job that has ended; None without one, for the reason in `note`."""

    checkpoint: CheckpointView | None
    note: str = ""


def at_text(checkpoint: CheckpointView) -> str:
    """Return the name and the position of a checkpoint as text."""
    where = "" if checkpoint.samples is None else f" at {checkpoint.samples:,} samples"
    return f"checkpoint {checkpoint.name}{where}"
