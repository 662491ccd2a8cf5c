"""HTTP as the client needs it: retries that end, errors with names, server-sent events."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from pydantic import ValidationError

from headway._tls import trusted_by
from headway.contract.jobs import Problem
from headway.errors import HeadwayError

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_RETRYABLE = frozenset({429, 502, 503, 504})


class Timer(Protocol):
    """What waiting needs; the module `time` is one."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""


_ON_401 = "Sign in with `headway login`, or set HEADWAY_TOKEN; an admin can make a token for you."


class ApiError(HeadwayError):
    """The service refused a request. `problem` is its answer; `problem.code` is stable."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        more = [error for error in problem.errors if error.message != problem.detail]
        fields = "".join(f"\n  {error.field}: {error.message}" for error in more)
        hint = _ON_401 if problem.status == 401 else ""
        super().__init__(f"{problem.detail or problem.title}{fields}", hint)


class ServiceUnavailableError(HeadwayError):
    """The service could not be reached, or said that it cannot work at present, until patience ran out."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One server-sent event."""

    event: str
    data: str
    id: str | None


class Http:
    """Requests to one service.

    Args:
        url: the service's address, for example `http://127.0.0.1:8123`.
        token: sent as a bearer token; None sends none.
        patience_s: how long a request is tried again while the service is away.
        transport: another way to reach the service than the network (tests hand one in).
        timer: the clock to wait by; tests hand one in.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        patience_s: float,
        transport: httpx.BaseTransport | None = None,
        timer: Timer = time,
    ) -> None:
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._timer = timer
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        timeout = httpx.Timeout(30.0, connect=5.0)
        try:
            self._client = httpx.Client(
                base_url=self.url,
                headers=headers,
                timeout=timeout,
                transport=transport,
                verify=trusted_by(os.environ),
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise HeadwayError(
                f"{url!r} is no address of a service: {error}.", "Correct HEADWAY_URL."
            ) from None

    def about(self, project: str) -> None:
        """Have every request say that it is about this project, where it does not name another one."""
        self._client.params = self._client.params.set("project", project)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def request(
        self, method: str, path: str, *, accept: Iterable[int] = (), **arguments: Any
    ) -> httpx.Response:
        """One exchange, tried again while the service is away. The request must be safe to repeat.

        Args:
            method: HTTP method.
            path: from the root, for example `/api/v1/jobs`.
            accept: error statuses that are answers, not errors.
            arguments: as httpx takes them (`params`, `json`, `content`, `headers`, `timeout`).

        Raises:
            ApiError: the service refused.
            ServiceUnavailableError: it was away for longer than `patience_s`.
        """
        patience = _Patience(self._timer, self._patience_s)
        while True:
            try:
                response = self._client.request(method, path, **arguments)
            except httpx.UnsupportedProtocol as error:
                raise HeadwayError(f"{self.url!r} is no address: {error}", "Correct HEADWAY_URL.") from None
            except httpx.TransportError as error:
                patience.wait(_unreachable(self.url, error))
                continue
            if response.is_success or response.status_code in accept:
                return response
            patience.wait(_failure(response), retry_after_s(response.headers))

    def follow(self, path: str, query: Mapping[str, str]) -> Iterator[ServerEvent]:
        """Server-sent events until the one named `end`; a broken connection is taken up again.

        Args:
            path: from the root.
            query: read at each connection, so that the caller may move its `after` on.

        Raises:
            ApiError: the service refused.
            ServiceUnavailableError: nothing came through for longer than `patience_s`.
        """
        patience = _Patience(self._timer, self._patience_s)
        while True:
            headers = {"Accept": "text/event-stream"}
            if "after" in query:
                headers["Last-Event-ID"] = query["after"]
            failure: HeadwayError = ServiceUnavailableError(
                f"The service at {self.url} keeps closing the stream.", "Look at its log."
            )
            try:
                with self._client.stream("GET", path, params=query, headers=headers) as response:
                    if response.is_success:
                        for event in parse_events(_lines(response.iter_bytes())):
                            if event.event == "end":
                                return
                            yield event
                            patience.renew()
                    else:
                        response.read()
                        failure = _failure(response)
            except httpx.ReadTimeout:
                patience.renew()  # a quiet stream, not a broken one
            except httpx.TransportError as error:
                failure = _unreachable(self.url, error)
            patience.wait(failure)


class _Patience:
    """How long something is tried again, and with what pauses between."""

    def __init__(self, timer: Timer, limit_s: float) -> None:
        self._timer = timer
        self._limit_s = limit_s
        self.renew()

    def renew(self) -> None:
        """It worked: count from now again."""
        self._deadline = self._timer.monotonic() + self._limit_s
        self._pause_s = _FIRST_PAUSE_S

    def wait(self, failure: HeadwayError, asked_s: float | None = None) -> None:
        """Pause for `asked_s` and a little more, lest all who were sent away come back at once; by default longer each time.

        Raises:
            HeadwayError: `failure`, when it cannot go away by itself or patience would run out.
        """
        pause_s = self._pause_s if asked_s is None else asked_s * random.uniform(1.0, 1.25)
        temporary = isinstance(failure, ServiceUnavailableError)
        if not temporary or self._timer.monotonic() + pause_s > self._deadline:
            raise failure
        self._timer.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


def parse_events(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """The events in the lines of a `text/event-stream`. Comments and half an event at the end are dropped."""
    event, data, identity = "message", list[str](), None
    for line in lines:
        if not line:
            if data or event != "message":
                yield ServerEvent(event, "\n".join(data), identity)
            event, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            event = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            identity = value


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines by line feeds alone: `str.splitlines` also splits at characters that JSON holds unescaped."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")


def problem_of(response: httpx.Response) -> Problem:
    """The problem in an error response; made up from the status when the body holds none."""
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError:
        said = response.text.strip()[:200]
        return Problem(
            type="about:blank",
            title=response.reason_phrase or "Error",
            status=response.status_code,
            code="unknown",
            detail=f"{response.request.url} answered {response.status_code} {response.reason_phrase}: {said}",
        )


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that a `Retry-After` header asks for; None when there is none or it is a date."""
    value = headers.get("Retry-After", "").strip()
    return float(value) if value.isdigit() else None


def _failure(response: httpx.Response) -> HeadwayError:
    problem = problem_of(response)
    if response.status_code in _RETRYABLE:
        return ServiceUnavailableError(problem.detail or problem.title, "Try again in a moment.")
    return ApiError(problem)


def _unreachable(url: str, error: httpx.TransportError) -> HeadwayError:
    said = str(error) or type(error).__name__
    return ServiceUnavailableError(
        f"The service at {url} does not answer ({said}).",
        "Start one with `headway up`, or set HEADWAY_URL to where it runs.",
    )
