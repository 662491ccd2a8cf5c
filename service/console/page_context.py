"""Shared state of the console routes: templates, live pages and the digest of static files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime

from fastapi import Request

from service.api.http.context import ApiContext
from service.console.live_pages import LivePages
from service.console.page_readers import PageReaders
from service.console.pages.page import Key
from service.console.templates import HERE, Templates


class PageContext:
    """The templates, and all pages that have viewers."""

    def __init__(self, context: ApiContext) -> None:
        self.templates = Templates()
        self.now: Callable[[], datetime] = context.now
        self._transactions = context.transactions
        self.live_pages: LivePages[Key] = LivePages(
            PageReaders(context).read, self.templates.fragment, context.now
        )
        self.assets = _digest()
        """Digest of style sheets and scripts. It is part of their addresses, so that browsers may cache them
        for ever."""

    async def device_kinds(self) -> list[str]:
        """Return the device kinds of all nodes."""
        async with self._transactions.begin() as tx:
            return sorted(await tx.nodes.device_kinds())


def _digest() -> str:
    found = hashlib.sha256()
    for file in sorted((HERE / "static").rglob("*")):
        if file.is_file():
            found.update(file.read_bytes())
    return found.hexdigest()[:12]


async def page_context_of(request: Request) -> PageContext:
    """Return the shared state of the pages of this application."""
    console: PageContext = request.app.state.console
    return console
