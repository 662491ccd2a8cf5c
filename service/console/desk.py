"""What the routes of the pages share in one process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime

from fastapi import Request

from service.api.context import ApiContext
from service.console.board import Board
from service.console.screens import Key, Screens
from service.console.templates import HERE, Templates


class Desk:
    """The templates, and the pictures of all pages that somebody looks at."""

    def __init__(self, context: ApiContext) -> None:
        self.templates = Templates()
        self.now: Callable[[], datetime] = context.now
        self._transactions = context.transactions
        self.board: Board[Key] = Board(Screens(context).read, self.templates.piece, context.now)
        self.assets = _digest()
        """Part of the address of style sheets and scripts: it changes with them, so that browsers may keep them for ever."""

    async def device_kinds(self) -> list[str]:
        """The kinds of devices that nodes have."""
        async with self._transactions.begin() as tx:
            return sorted(await tx.nodes.device_kinds())


def _digest() -> str:
    found = hashlib.sha256()
    for file in sorted((HERE / "static").rglob("*")):
        if file.is_file():
            found.update(file.read_bytes())
    return found.hexdigest()[:12]


async def desk_of(request: Request) -> Desk:
    """What the pages of this application share."""
    desk: Desk = request.app.state.desk
    return desk
