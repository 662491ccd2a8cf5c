"""Errors as `application/problem+json`. No other module assigns HTTP statuses to errors."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from headway.contract.values.redaction import without_credentials
from headway.contract.views.jobs import FieldProblem, Problem
from service.domain.shared.errors import (
    AgentTooOld,
    BundleRefused,
    ChangedMeanwhile,
    DeadlineRefused,
    Forbidden,
    HeadwayServiceError,
    IdempotencyConflict,
    IllegalTransition,
    InUse,
    InvalidField,
    LastAdmin,
    NameTaken,
    NodeNameTaken,
    NoSecretsKey,
    NotFound,
    RentalRefused,
    SecretUnreadable,
    TooBusy,
    TooLarge,
    TooManyCommands,
    Unavailable,
    WrongToken,
)

log = structlog.get_logger()

STATUS: dict[type[HeadwayServiceError], HTTPStatus] = {
    InvalidField: HTTPStatus.UNPROCESSABLE_ENTITY,
    BundleRefused: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotFound: HTTPStatus.NOT_FOUND,
    NameTaken: HTTPStatus.CONFLICT,
    NodeNameTaken: HTTPStatus.CONFLICT,
    IdempotencyConflict: HTTPStatus.UNPROCESSABLE_ENTITY,
    DeadlineRefused: HTTPStatus.CONFLICT,
    ChangedMeanwhile: HTTPStatus.PRECONDITION_FAILED,
    IllegalTransition: HTTPStatus.CONFLICT,
    TooManyCommands: HTTPStatus.CONFLICT,
    AgentTooOld: HTTPStatus.CONFLICT,
    WrongToken: HTTPStatus.UNAUTHORIZED,
    Forbidden: HTTPStatus.FORBIDDEN,
    LastAdmin: HTTPStatus.CONFLICT,
    RentalRefused: HTTPStatus.CONFLICT,
    InUse: HTTPStatus.CONFLICT,
    TooBusy: HTTPStatus.TOO_MANY_REQUESTS,
    NoSecretsKey: HTTPStatus.CONFLICT,
    SecretUnreadable: HTTPStatus.CONFLICT,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}

_MOST_ERRORS = 50
"""Wrong fields that one answer names."""
PROBLEM: dict[str, Any] = {"model": Problem, "description": "application/problem+json"}
"""Model of errors in the API's description."""
OTHER_CODE = "http_error"
OTHER_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
"""Error codes of the framework's own errors, by status; `OTHER_CODE` for every other status."""


def problem_response(
    request: Request,
    status: int,
    code: str,
    detail: str,
    errors: Sequence[FieldProblem] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """Return the response for one problem."""
    problem = Problem(
        type=f"/help/errors#{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=without_credentials(detail),
        instance=without_credentials(request.url.path),
        request_id=request.scope.get("request_id"),
        errors=list(errors),
    )
    return Response(problem.model_dump_json(), status, headers=headers, media_type="application/problem+json")


async def _service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadwayServiceError)
    return service_error(request, error)


def service_error(request: Request, error: HeadwayServiceError) -> Response:
    """Return the response for an error of the service."""
    status = STATUS.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
    headers = {}
    errors: list[FieldProblem] = []
    if isinstance(error, Unavailable | TooBusy):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if isinstance(error, WrongToken):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, InvalidField):
        errors.append(FieldProblem(field=error.field, message=error.message))
    return problem_response(request, status, error.code, error.message, errors, headers)


def _field_name(location: Sequence[Any]) -> str:
    """Return a field's name such as `elastic.min` from pydantic's location, without body or query."""
    parts = location[1:] if location and location[0] in {"body", "query", "path", "header"} else location
    return ".".join(str(part) for part in parts) or "body"


async def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    errors = [
        FieldProblem(field=_field_name(one["loc"]), message=str(one["msg"]).removeprefix("Value error, "))
        for one in found[:_MOST_ERRORS]
    ]
    detail = "; ".join(f"{one.field}: {one.message}" for one in errors)
    if len(found) > _MOST_ERRORS:
        detail += f"; and {len(found) - _MOST_ERRORS:,} more"
    return problem_response(request, 422, "invalid_field", detail, errors)


async def http_error(request: Request, error: Exception) -> Response:
    """Return the response for an error of the framework, such as an unknown address."""
    assert isinstance(error, HTTPException)
    code = OTHER_CODES.get(error.status_code, OTHER_CODE)
    headers = dict(error.headers) if error.headers else None
    return problem_response(request, error.status_code, code, str(error.detail), headers=headers)


async def _gone(_: Request, error: Exception) -> Response:
    """Answer a client that disconnected during its request. Nobody reads the answer, and it is not logged as
    an error.
    """
    assert isinstance(error, ClientDisconnect)
    return Response(status_code=400)


async def _internal_error(request: Request, error: Exception) -> Response:
    request_id = request.scope.get("request_id")  # the logging context is gone here
    log.error("unhandled_error", path=request.url.path, request_id=request_id, exc_info=error)
    detail = "an error inside the service; try again, and look up the request id in the service's log if it persists."
    return problem_response(request, 500, "internal", detail)


def install(app: FastAPI) -> None:
    """Render every error of the application as a problem."""
    app.add_exception_handler(HeadwayServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _internal_error)
