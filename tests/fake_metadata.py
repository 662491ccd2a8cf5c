"""A metadata service like EC2's, that says what the test says."""

from __future__ import annotations

import itertools
import json
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class FakeMetadata:
    """Answers with a session token only (IMDSv2). `bodies` are what is there; any other path is 404."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.status: int | None = None
        """Status of every answer; None: as the path has it."""
        self.tokens = itertools.count(1)
        self.token = ""
        self.asked: list[str] = []
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01])
        self._thread.start()

    def take_away(self, in_s: float, action: str = "terminate") -> datetime:
        """Announce it; the moment at which the host is gone, to the second as EC2 says it."""
        at = (datetime.now(UTC) + timedelta(seconds=in_s)).replace(microsecond=0)
        self.bodies[ACTION] = json.dumps({"action": action, "time": f"{at:%Y-%m-%dT%H:%M:%SZ}"}).encode()
        return at

    def recommend_leaving(self) -> None:
        self.bodies[REBALANCE] = json.dumps(
            {"noticeTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
        ).encode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeMetadata

    def do_PUT(self) -> None:
        self.fake.asked.append(self.path)
        wanted = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
        if not wanted:
            self._answer(400, b"")
            return
        self.fake.token = f"session-{next(self.fake.tokens)}"
        self._answer(200, self.fake.token.encode())

    def do_GET(self) -> None:
        self.fake.asked.append(self.path)
        if self.headers["X-aws-ec2-metadata-token"] != self.fake.token:
            self._answer(401, b"")
            return
        body = self.fake.bodies.get(self.path)
        self._answer(404, b"") if body is None else self._answer(200, body)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(self.fake.status or status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass
