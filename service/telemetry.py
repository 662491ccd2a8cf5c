"""Metrics, logs and traces of one process of the service."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import version

import structlog
from prometheus_client import CollectorRegistry

from headway import tracing
from headway.contract.standstills import Standstill
from headway.errors import HeadwayError
from headway.exposing import Bind, listen
from service.adapters.metrics import FactMetrics, StandstillMetrics, process_registry
from service.adapters.traces import JobTraces
from service.environment import SettingsError
from service.log import log_fact
from service.usecases.ports.facts import BegunTrace, Fact, Tell

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Telemetry of one process. `spans` is None if no collector is configured."""

    registry: CollectorRegistry
    tell: Tell
    standstill: Callable[[Standstill], None]
    """Receiver of standstills of the main loop, for the log and the metrics. Any thread may call it."""
    traces: JobTraces | None = None
    spans: tracing.Sends | None = None

    def begin_trace(self, job_id: str, traceparent: str | None) -> BegunTrace | None:
        """Start the trace of a job, as `ApiContext.begin_trace` describes."""
        return None if self.traces is None else self.traces.begin(job_id, traceparent)

    @contextmanager
    def exposed(self, bind: Bind | None) -> Iterator[None]:
        """Serve `/metrics` at an address until the block ends, in a process without an API.

        Raises:
            SettingsError: the address cannot be used.
        """
        if bind is None:
            yield
            return
        try:
            listener = listen(bind, self.registry)
        except HeadwayError as error:
            raise SettingsError(f"HEADWAY_METRICS_LISTEN: {error}") from error
        try:
            yield
        finally:
            listener.close()

    def close(self) -> None:
        """Send the remaining spans of traces."""
        if self.spans is not None:
            self.spans.close()


def telemetry(now: Callable[[], datetime], spans: tracing.Sends | None = None) -> Telemetry:
    """Return the telemetry of a process: metrics, logs, and traces if `spans` is given."""
    registry = process_registry()
    counts = FactMetrics(registry)
    stood = StandstillMetrics(registry)

    def standstill(one: Standstill) -> None:
        stood.hear(one)
        log.warning("loop_stood_still", stood_s=one.stood_s, own_s=one.own_s, frames=list(one.stack))

    if spans is None:
        return Telemetry(registry, telling([counts.hear, log_fact]), standstill)
    traces = JobTraces(spans, now)
    return Telemetry(registry, telling([counts.hear, log_fact, traces.hear]), standstill, traces, spans)


def telling(hearers: Sequence[Tell]) -> Tell:
    """Return a function that passes a fact to each of the hearers.

    Facts are committed, so the error of one hearer is logged and the other hearers still run.
    """

    def tell(fact: Fact) -> None:
        for hearer in hearers:
            try:
                hearer(fact)
            except Exception:
                log.exception("fact_not_taken_in", fact=type(fact).__name__)

    return tell


def collector_of(env: Mapping[str, str], role: str) -> tracing.Sends | None:
    """Return the destination of spans, or None if the environment names none.

    If OpenTelemetry is not installed, log a warning and return None.
    """
    instance = f"{os.uname().nodename}-{os.getpid()}"
    missing = partial(log.warning, "no_traces")
    return tracing.collector(env, f"headway-{role}", instance, version("headway"), missing=missing)
