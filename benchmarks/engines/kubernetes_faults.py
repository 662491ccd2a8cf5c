"""Server between a provider and a real API server of Kubernetes, which answers some requests with what a real one answers rarely."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx


class Fault(StrEnum):
    """Answer in place of the API server's."""

    CONFLICT = "409"
    EXPIRED = "410"
    LIMITED = "429"
    BROKEN = "500"
    OVERLOADED = "503"
    TIMED_OUT = "504"
    UNREADABLE = "not JSON"
    UNSENT = "connection lost before the request"
    UNANSWERED = "connection lost after the request"


REASONS = {
    Fault.CONFLICT: "Conflict",
    Fault.EXPIRED: "Expired",
    Fault.LIMITED: "TooManyRequests",
    Fault.BROKEN: "InternalError",
    Fault.OVERLOADED: "ServiceUnavailable",
    Fault.TIMED_OUT: "Timeout",
}
"""Reasons as a real server gives them with these codes."""
Choose = Callable[[str, str], Fault | None]
"""Takes a request's method and path, and returns its fault, or None to pass the request on."""


class FaultyServer:
    """API server behind faults. `retry_after_s` is what an answer 429 asks for."""

    def __init__(self, behind: str, choose: Choose, retry_after_s: int = 1) -> None:
        self.choose = choose
        self.retry_after_s = retry_after_s
        self.faults: Counter[Fault] = Counter()
        self.requests: list[str] = []
        """Method and path of each request, in their order."""
        self._client = httpx.Client(base_url=behind, verify=False, timeout=30.0)
        faulty = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                faulty.answer(self)

            do_POST = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="faulty server", daemon=True)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Serve until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._client.close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request, or lose its connection."""
        path = request.path.partition("?")[0]
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        with self._lock:
            self.requests.append(f"{request.command} {path}")
            fault = self.choose(request.command, path)
            if fault is not None:
                self.faults[fault] += 1
        match fault:
            case None:
                self._pass_on(request, body)
            case Fault.UNSENT:
                request.close_connection = True
            case Fault.UNANSWERED:
                self._ask(request, body)
                request.close_connection = True
            case Fault.UNREADABLE:
                _write(request, HTTPStatus.OK, b"<html>", {})
            case _:
                status = {"kind": "Status", "reason": REASONS[fault], "message": f"injected {fault.value}"}
                more = {"Retry-After": str(self.retry_after_s)} if fault is Fault.LIMITED else {}
                _write(request, int(fault.value), json.dumps(status).encode(), more)

    def _pass_on(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        answer = self._ask(request, body)
        if answer is None:
            request.close_connection = True
            return
        kept = {
            name: answer.headers[name] for name in ("Content-Type", "Retry-After") if name in answer.headers
        }
        _write(request, answer.status_code, answer.content, kept)

    def _ask(self, request: BaseHTTPRequestHandler, body: bytes) -> httpx.Response | None:
        names = ("Authorization", "Content-Type", "Accept")
        headers = {name: request.headers[name] for name in names if name in request.headers}
        try:
            return self._client.request(request.command, request.path, content=body, headers=headers)
        except httpx.HTTPError:
            return None  # the real server is away: so is this one


@contextmanager
def faulty_server(behind: str, choose: Choose) -> Iterator[FaultyServer]:
    """Serve the API server of this address behind faults."""
    server = FaultyServer(behind, choose)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _write(request: BaseHTTPRequestHandler, code: int, body: bytes, headers: Mapping[str, str]) -> None:
    try:
        request.send_response(code)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
    except OSError:
        request.close_connection = True  # the other side has given up
