"""Traces of jobs, sent to a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`) if `headway[traces]` is installed.

The service and the agents each send their own spans. The id of a span is a digest of its trace and its
subject. Any program can therefore name the parent of its span, and a span that is sent twice is one span.
OpenTelemetry is imported only to send traces.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from typing import Any, Protocol

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
"""Pattern of a `traceparent` header of W3C Trace Context, version 00."""
_SAMPLED = 1
_LAST_S = 10.0


@dataclass(frozen=True, slots=True)
class SpanRef:
    """The identity of a span: 32 and 16 hexadecimal digits."""

    trace_id: str
    span_id: str

    @classmethod
    def parse(cls, traceparent: str | None) -> SpanRef | None:
        """Parse a `traceparent`. Return None if it is missing, invalid or not sampled."""
        found = _TRACEPARENT.fullmatch(traceparent or "")
        if found is None or not int(found[3], 16) & _SAMPLED:
            return None
        return cls(found[1], found[2])

    def __str__(self) -> str:
        """Return the span as a `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-01"

    def child(self, *about: str | int) -> SpanRef:
        """Return the span of the same trace with this subject."""
        return SpanRef(self.trace_id, _digest(self.trace_id, *about)[:16])


def trace_of(job_id: str) -> SpanRef:
    """Return the root of a job's trace, for jobs that arrive without a `traceparent`."""
    trace_id = _digest("trace", job_id)[:32]
    return SpanRef(trace_id, _digest(trace_id, "submit")[:16])


def _digest(*about: str | int) -> str:
    return hashlib.sha256("\0".join(map(str, about)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A timed operation. `attributes` hold no secrets: no environment and no script arguments."""

    name: str
    ref: SpanRef
    parent: SpanRef | None
    began_at: datetime
    ended_at: datetime
    attributes: Mapping[str, str | int | float | bool]
    failed: bool = False


class Sends(Protocol):
    """Interface of a destination for spans."""

    def send(self, span: Span) -> None:
        """Queue a span, to be sent soon."""

    def close(self) -> None:
        """Send the remaining spans and stop."""


class Otlp:
    """Sender of spans to a collector by OTLP over HTTP, from a thread. Spans that it refuses are lost.

    Args:
        service_name: name of the program for the collector.
        instance: id of this process.
        version: version of the program.
    """

    def __init__(self, service_name: str, instance: str, version: str) -> None:
        # Only programs that send traces have these modules and wait for their import.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        self._processor = BatchSpanProcessor(OTLPSpanExporter())
        self._resource = Resource.create(
            {"service.name": service_name, "service.instance.id": instance, "service.version": version}
        )

    def send(self, span: Span) -> None:
        """Queue a span for the next batch."""
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

        began_ns, ended_ns = (int(at.timestamp() * 1e6) * 1000 for at in (span.began_at, span.ended_at))
        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=_context(span.ref),
                parent=None if span.parent is None else _context(span.parent),
                resource=self._resource,
                attributes=dict(span.attributes),
                status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
                start_time=began_ns,
                end_time=max(began_ns, ended_ns),
            )
        )

    def close(self) -> None:
        """Send the remaining spans. A collector that does not answer delays this by at most ten seconds."""
        sending = threading.Thread(target=self._processor.shutdown, daemon=True)
        sending.start()
        sending.join(_LAST_S)


def _context(ref: SpanRef) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

    return SpanContext(
        trace_id=int(ref.trace_id, 16),
        span_id=int(ref.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def collector(
    env: Mapping[str, str], service_name: str, instance: str, version: str, *, missing: Callable[..., object]
) -> Sends | None:
    """Return the destination of spans that the environment names; see `Otlp`.

    Return None if the environment names no collector. Return None and call `missing` with `why` and
    `what_next` if `headway[traces]` is not installed.
    """
    named = env.get(TRACES_ENDPOINT) or env.get(ENDPOINT)
    if not named or env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if not all(find_spec(name) is not None for name in ("opentelemetry", "opentelemetry.sdk")):
        missing(why="OpenTelemetry is not installed", what_next="pip install 'headway[traces]'")
        return None
    return Otlp(service_name, instance, version)
