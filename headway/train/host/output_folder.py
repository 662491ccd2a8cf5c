"""Which process writes to the output folder when rank 0 changes: what ranks and their agent tell each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headway.contract.orders import OUTPUT_FILE, OUTPUT_GIVEN_FILE, generation_from_json, generation_to_json
from headway.train.host.output import flush, warn

_POLL_S: Final = 0.01
_WAIT_S: Final = 180.0
"""Longest wait for the agent in seconds. The agent gives up earlier and says so in an event."""


def await_output(control: Path | None, generation: int, superseded: Callable[[], bool]) -> bool:
    """Wait until this rank may write to the output folder; not at all without an agent that says so.

    Return False if a newer order, or a request to stop, came first.
    """
    if control is None or not (path := control / OUTPUT_FILE).exists():
        return True
    give_up_s = time.monotonic() + _WAIT_S
    while _complete_for(path) < generation:
        if superseded():
            return False
        if time.monotonic() > give_up_s:
            warn(
                "the agent did not bring the output folder up to date; files of the previous rank 0 may be missing"
            )
            return True
        time.sleep(_POLL_S)
    return True


def give_output(control: Path | None, generation: int) -> None:
    """Tell the agent that this process, which was rank 0, writes to the output folder no more."""
    if control is None:
        return
    flush()
    part = control / f"{OUTPUT_GIVEN_FILE}.part"
    try:
        part.write_text(generation_to_json(generation), encoding="utf-8")
        part.replace(control / OUTPUT_GIVEN_FILE)
    except OSError as error:
        warn(f"the agent is not told that rank 0 changed: {error}")


def _complete_for(path: Path) -> int:
    try:
        return generation_from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
