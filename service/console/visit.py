"""One request of a page: its caller, and the response as HTML."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, Response

from headway.contract.views.identity import Role
from service.api.http.access import Caller
from service.api.http.sessions import csrf_token, session_of
from service.console.html.fragments import PageVersion
from service.console.page_context import PageContext, page_context_of
from service.console.page_readers import PAGES
from service.console.pages.page import Key, Viewer
from service.domain.identity.access import Principal


@dataclass(frozen=True, slots=True)
class PageVisit:
    """A request of a page, with its caller and the shared state of the pages."""

    request: Request
    caller: Principal
    console: PageContext

    @property
    def viewer(self) -> Viewer:
        """The caller's rights on pages that are not about one job."""
        return Viewer(
            self.caller.projects(),
            may_control=self.caller.projects(Role.USER) != frozenset(),
            may_operate=self.caller.may(Role.OPERATOR),
        )

    async def show(self, template: str, key: Key, **values: Any) -> Response:
        """Return a live page with the present HTML of its fragments."""
        live_pages = self.console.live_pages
        page = await live_pages.current(key)
        stream = f"/live/{key.page}/{key.about}" if key.about else f"/live/{key.page}"
        values = {
            "page": key.page,
            "key": key,
            "stream": f"{stream}?{key.query}",
            "version": f"{live_pages.epoch}.{page.version}",
            "at": self.console.now(),
            **values,
        }
        return await asyncio.to_thread(self.page, template, values, live=page)

    def page(
        self, template: str, values: Mapping[str, Any], status: int = 200, live: PageVersion | None = None
    ) -> Response:
        """Return a page, which is not cached. `live` has its live fragments, if it has any."""
        html = self.console.templates.page(template, {**self._frame(), **values}, live)
        return HTMLResponse(html, status, headers={"Cache-Control": "no-store"})

    def _frame(self) -> dict[str, Any]:
        """Return the values that every page has."""
        session = session_of(self.request)
        return {
            "who": self.caller.name,
            "sight": self.viewer,
            "csrf": csrf_token(session) if session is not None else "",
            "signed_in": session is not None,
            "done": self.request.query_params.get("done", ""),
            "stream": "",
            "version": "",
            "assets": self.console.assets,
            "page": "",
            "added": [(name, page.label) for name, page in PAGES.items()],
        }


async def visit_of(
    request: Request, caller: Caller, console: Annotated[PageContext, Depends(page_context_of)]
) -> PageVisit:
    """Return the visit of a request."""
    return PageVisit(request, caller, console)


Visit: TypeAlias = Annotated[PageVisit, Depends(visit_of)]
