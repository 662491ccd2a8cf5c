"""Route class of submits, which resolves its dependencies itself.

A submit is one statement, and FastAPI's resolution of dependencies would take a quarter of its time. This
class calls the same functions in the same order, and FastAPI still describes the route by its signature.
Requests that are not plain submits take the normal path, which explains their errors.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import ValidationError

from headway.contract.spec import JobSpec
from headway.contract.views.identity import Role
from service.api.http.access import caller_of, require_somewhere
from service.api.http.context import IDEMPOTENCY_BYTES, bearer, context_of

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class SubmitRoute(APIRoute):
    """Route whose endpoint takes the arguments of `jobs.submit_job`."""

    def get_route_handler(self) -> Handler:
        """Return the handler of one request."""
        usual, endpoint = super().get_route_handler(), self.endpoint

        async def handle(request: Request) -> Response:
            spec = await _spec_in(request)
            key = request.headers.get("idempotency-key")
            if spec is None or (key is not None and not 1 <= len(key) <= IDEMPOTENCY_BYTES):
                return await usual(request)
            caller = await caller_of(request, await bearer(request))
            require_somewhere(caller, Role.USER)
            context = await context_of(request)
            response: Response = await endpoint(request, context, caller, spec, key)
            return response

        return handle


async def _spec_in(request: Request) -> JobSpec | None:
    """Return the job specification in the body, or None if the body has no valid one."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        return None
    try:
        return JobSpec.model_validate(await request.json())
    except (ValidationError, ValueError, RecursionError):
        return None
