"""Errors as HTML pages, with a message that says what to do next."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from service.api.http.problems import STATUS, http_error, service_error
from service.console.page_context import PageContext
from service.domain.shared.errors import HeadwayServiceError, TooBusy, Unavailable, WrongToken


class PageRoute(APIRoute):
    """A route that renders its errors as pages, and redirects unknown users to the sign-in."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route, wrapped in error handling."""
        handle = super().get_route_handler()

        async def careful(request: Request) -> Response:
            try:
                return await handle(request)
            except WrongToken as error:
                return _to_sign_in(request, error)
            except HeadwayServiceError as error:
                return error_page(request, error)
            except RequestValidationError as error:
                message = "; ".join(str(one["msg"]) for one in error.errors())
                return _page(
                    request, HTTPStatus.UNPROCESSABLE_ENTITY, f"this address is not right: {message}"
                )

        return careful


def _to_sign_in(request: Request, error: WrongToken) -> Response:
    """Redirect a page to the sign-in, after which it loads again. Streams and forms get an error response."""
    if request.url.path.startswith("/live/"):
        return service_error(request, error)
    here = request.url.path if request.method == "GET" else "/"
    if request.url.query and request.method == "GET":
        here += f"?{request.url.query}"
    return RedirectResponse(f"/auth/login?return_to={quote(here, safe='/')}", 303)


def error_page(request: Request, error: HeadwayServiceError) -> Response:
    """Return an error of the service as a page, or as a problem response to a stream."""
    if request.url.path.startswith("/live/"):
        return service_error(request, error)
    status = STATUS.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
    response = _page(request, status, error.message)
    if isinstance(error, Unavailable | TooBusy):
        response.headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    return response


async def unknown_page(request: Request, error: Exception) -> Response:
    """Answer an address that no route has: browsers get a page with ways on, other clients a problem."""
    assert isinstance(error, HTTPException)
    is_page = request.method in {"GET", "HEAD"} and not request.url.path.startswith(
        ("/api/", "/live/", "/static/")
    )
    if (
        error.status_code != HTTPStatus.NOT_FOUND
        or not is_page
        or "text/html" not in request.headers.get("accept", "")
    ):
        return await http_error(request, error)
    return _page(
        request,
        HTTPStatus.NOT_FOUND,
        f"there is no page {request.url.path}; the pages below lead to all others.",
    )


def _page(request: Request, status: HTTPStatus, message: str) -> Response:
    console: PageContext = request.app.state.console
    values = {
        "title": status.phrase,
        "message": message[:1].upper() + message[1:],
        "assets": console.assets,
        "again": status in {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS},
    }
    html = console.templates.page("error.html", values)
    return HTMLResponse(html, int(status), headers={"Cache-Control": "no-store"})
