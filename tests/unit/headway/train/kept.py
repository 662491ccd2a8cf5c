"""An object of a script that is no module and keeps a state."""

from __future__ import annotations

from typing import Any


class Kept:
    """An object with this state."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state
