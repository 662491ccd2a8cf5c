"""Standstills of the main loops of the service's processes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Standstill(BaseModel):
    """A period in which the main loop of a process executed nothing else, through the fault of that process."""

    model_config = ConfigDict(frozen=True)

    process: str
    """Name of the process: its role, host and process id."""
    at_s: float
    """End of the period, in Unix seconds by the clock of its host."""
    stood_s: float
    """Length of the period in seconds."""
    own_s: float
    """Part of it in seconds that the process caused; the rest it waited for a processor, or was stopped."""
    stack: tuple[str, ...]
    """Innermost frame of each other thread, then the frames of the loop's thread, the innermost last: `file:line function`."""
