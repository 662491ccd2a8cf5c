"""HTTP for the client: bounded retries, typed errors and server-sent events."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from pydantic import ValidationError

from headway.contract.views.jobs import Problem
from headway.errors import HeadwayError
from headway.proxies import Proxy, naming, proxy_for, proxy_hint
from headway.tls import certificate_hint, trusted_for

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_RETRYABLE = frozenset({429, 502, 503, 504})


class Timer(Protocol):
    """Interface of a clock for waits. The module `time` implements it."""

    def sleep(self, seconds: float, /) -> None:
        """Wait for a number of seconds."""

    def monotonic(self) -> float:
        """Return seconds of a monotonic clock."""


_ON_401 = "Sign in with `headway login`, or set HEADWAY_TOKEN; an admin can make a token for you."


class ApiError(HeadwayError):
    """Error: the service refused a request. `problem` is its answer, and `problem.code` is stable."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        more = [error for error in problem.errors if error.message != problem.detail]
        fields = "".join(f"\n  {error.field}: {error.message}" for error in more)
        hint = _ON_401 if problem.status == 401 else ""
        super().__init__(f"{problem.detail or problem.title}{fields}", hint)


class ServiceUnavailableError(HeadwayError):
    """Error: the service could not be reached, or was unavailable, until the time limit for retries expired."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One server-sent event."""

    event: str
    data: str


class Http:
    """Requests to one service.

    Args:
        url: URL of the service, for example `http://127.0.0.1:8123`.
        token: bearer token; None sends none.
        patience_s: time limit for the retries of a request while the service is away.
        transport: transport in place of the network; tests pass their own.
        timer: clock for waits; tests pass their own.
        ca_file: certificate file (PEM) to trust as well; None: those of the system and of `HEADWAY_CA_FILE`.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        patience_s: float,
        ca_file: str | None = None,
        transport: httpx.BaseTransport | None = None,
        timer: Timer = time,
    ) -> None:
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._timer = timer
        try:
            self._proxy = proxy_for(self.url, os.environ) if transport is None else None
            with naming(self._proxy, self.url):
                self._client = httpx.Client(
                    base_url=self.url,
                    headers={"Authorization": f"Bearer {token}"} if token else {},
                    timeout=httpx.Timeout(30.0, connect=5.0),
                    transport=transport,
                    verify=trusted_for(self.url, os.environ, ca_file),
                    proxy=self._proxy.address if self._proxy else None,
                    trust_env=False,
                )
        except (httpx.InvalidURL, ValueError) as error:
            raise HeadwayError(
                f"{url!r} is not the URL of a service: {error}.", "Correct HEADWAY_URL."
            ) from None

    def about(self, project: str) -> None:
        """Add the project to every request that does not name another one."""
        self._client.params = self._client.params.set("project", project)

    def close(self) -> None:
        """Close the connections of the client."""
        self._client.close()

    def request(
        self, method: str, path: str, *, accept: Iterable[int] = (), **arguments: Any
    ) -> httpx.Response:
        """Send a request and return its response, with retries while the service is away.

        The request must be safe to repeat.

        Args:
            method: HTTP method.
            path: path from the root, for example `/api/v1/jobs`.
            accept: error statuses to return instead of raising an error.
            arguments: arguments of httpx (`params`, `json`, `content`, `headers`, `timeout`).

        Raises:
            ApiError: the service refused the request.
            ServiceUnavailableError: the service was away for longer than `patience_s`.
        """
        retries = _Retries(self._timer, self._patience_s)
        while True:
            try:
                response = self._client.request(method, path, **arguments)
            except httpx.UnsupportedProtocol as error:
                raise HeadwayError(f"{self.url!r} is not a URL: {error}", "Correct HEADWAY_URL.") from None
            except httpx.TransportError as error:
                retries.wait(_unreachable(self.url, error, self._proxy))
                continue
            if response.is_success or response.status_code in accept:
                return response
            retries.wait(_failure(response), retry_after_s(response.headers))

    def follow(self, path: str, query: Mapping[str, str]) -> Iterator[ServerEvent]:
        """Yield server-sent events until the one named `end`. Reconnect after a broken connection.

        Args:
            path: path from the root.
            query: parameters, read at each connection, so that the caller may advance `after`.

        Raises:
            ApiError: the service refused the request.
            ServiceUnavailableError: no event arrived for longer than `patience_s`.
        """
        retries = _Retries(self._timer, self._patience_s)
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
                            retries.renew()
                    else:
                        response.read()
                        failure = _failure(response)
            except httpx.ReadTimeout:
                retries.renew()  # a quiet stream, not a broken one
            except httpx.TransportError as error:
                failure = _unreachable(self.url, error, self._proxy)
            retries.wait(failure)


class _Retries:
    """The deadline and the backoff of retries."""

    def __init__(self, timer: Timer, limit_s: float) -> None:
        self._timer = timer
        self._limit_s = limit_s
        self.renew()

    def renew(self) -> None:
        """Restart the deadline and the backoff after a success."""
        self._deadline = self._timer.monotonic() + self._limit_s
        self._pause_s = _FIRST_PAUSE_S

    def wait(self, failure: HeadwayError, asked_s: float | None = None) -> None:
        """Wait before a retry: `asked_s` plus up to 25 % jitter, or else an exponential backoff.

        The jitter keeps clients from returning all at once.

        Raises:
            HeadwayError: `failure`, if it is permanent or the deadline would pass.
        """
        pause_s = self._pause_s if asked_s is None else asked_s * random.uniform(1.0, 1.25)
        temporary = isinstance(failure, ServiceUnavailableError)
        if not temporary or self._timer.monotonic() + pause_s > self._deadline:
            raise failure
        self._timer.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


def parse_events(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """Parse the lines of a `text/event-stream` and yield events.

    Drop comments and an incomplete last event.
    """
    event, data = "message", list[str]()
    for line in lines:
        if not line:
            if data or event != "message":
                yield ServerEvent(event, "\n".join(data))
            event, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            event = value
        elif field == "data":
            data.append(value)


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Split bytes into lines at line feeds only.

    `str.splitlines` also splits at characters that JSON holds unescaped.
    """
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")


def problem_of(response: httpx.Response) -> Problem:
    """Return the problem in an error response, or one made from the status if the body holds none."""
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError:
        body = response.text.strip()[:200]
        return Problem(
            type="about:blank",
            title=response.reason_phrase or "Error",
            status=response.status_code,
            code="unknown",
            detail=f"{response.request.url} answered {response.status_code} {response.reason_phrase}: {body}",
        )


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a `Retry-After` header, or None if it is missing or a date."""
    value = headers.get("Retry-After", "").strip()
    return float(value) if value.isdecimal() else None


def _failure(response: httpx.Response) -> HeadwayError:
    problem = problem_of(response)
    if response.status_code in _RETRYABLE:
        return ServiceUnavailableError(problem.detail or problem.title, "Try again in a moment.")
    return ApiError(problem)


def _unreachable(url: str, error: httpx.TransportError, proxy: Proxy | None) -> HeadwayError:
    reason = str(error) or type(error).__name__
    return ServiceUnavailableError(
        f"The service at {url} does not answer ({reason}).",
        certificate_hint(error)
        or (proxy_hint(proxy, url) if proxy else "")
        or "Start one with `headway up`, or set HEADWAY_URL to the URL of a running service.",
    )
