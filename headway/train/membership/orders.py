"""The orders of the service: the members of the next generation."""

from __future__ import annotations

import os
from pathlib import Path

from headway.contract.orders import ORDER_FILE, Order, order_from_json
from headway.train.host.output import warn


class Orders:
    """The order file of this process. A check costs one `stat`, so training checks it at every step.

    Args:
        folder: the control folder; None if there is no agent.
        losses_per_h: losses that the service expected when this process started; None if it said nothing.
    """

    def __init__(self, folder: Path | None, losses_per_h: float | None = None) -> None:
        self._losses_per_h = losses_per_h
        self._path = str(folder / ORDER_FILE) if folder is not None else None
        self._seen: tuple[int, int] | None = None
        self._order: Order | None = None

    def newer_than(self, generation: int) -> Order | None:
        """Return the newest order, if it is for a generation after this one."""
        order = self._read()
        return order if order is not None and order.generation > generation else None

    def losses_per_h(self) -> float | None:
        """Return the latest losses per hour that the service expects; None if it said nothing."""
        order = self._read()
        if order is not None and order.losses_per_h is not None:
            self._losses_per_h = order.losses_per_h
        return self._losses_per_h

    def _read(self) -> Order | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)  # noqa: PTH116  # at every step, and pathlib takes three times as long
        except FileNotFoundError:
            return None
        identity = (found.st_ino, found.st_mtime_ns)
        if identity != self._seen:
            try:
                self._order = order_from_json(Path(self._path).read_text(encoding="utf-8"))
            except OSError as error:
                warn(f"the agent's order cannot be read, and the next step tries again: {error}")
                return self._order
            except ValueError as error:
                warn(f"the agent's order is invalid and is ignored: {error}")
            self._seen = identity
        return self._order
