"""A collector of traces: takes OTLP over HTTP, as every real one does, and keeps what it was sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Got:
    """A span as it came over the wire."""

    program: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    failed: bool
    attributes: dict[str, Any]


class Collector:
    """A collector of spans. `wait_for` waits until there are enough."""

    def __init__(self) -> None:
        self.spans: list[Got] = []
        self.raw = b""
        self.changed = threading.Condition()
        handler = type("Handler", (_Handler,), {"collector": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self.changed:
            self.raw += body
            for of_resource in request.resource_spans:
                resource = {one.key: one.value.string_value for one in of_resource.resource.attributes}
                for scope in of_resource.scope_spans:
                    self.spans += [_got(resource["service.name"], span) for span in scope.spans]
            self.changed.notify_all()

    def named(self, name: str) -> list[Got]:
        return [one for one in self.spans if one.name == name]

    def wait_for(self, *names: str, timeout_s: float = 60.0) -> dict[str, Got]:
        """The first span of each of these names."""
        with self.changed:
            assert self.changed.wait_for(lambda: all(map(self.named, names)), timeout_s), self.spans
            return {name: self.named(name)[0] for name in names}

    @contextmanager
    def running(self) -> Iterator[Collector]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def _got(program: str, span: Any) -> Got:
    values = {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
    return Got(
        program,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == 2,
        values,
    )


class _Handler(BaseHTTPRequestHandler):
    collector: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        self.collector.take(body)
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Silent."""
