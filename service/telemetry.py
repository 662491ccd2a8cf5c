"""What watches a process of the service, put together: what it counts, and where the traces of jobs go."""

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
from headway.errors import HeadwayError
from headway.exposing import Bind, listen
from service.adapters.metrics import FactMetrics, process_registry
from service.adapters.traces import JobTraces
from service.environment import SettingsError
from service.log import log_fact
from service.usecases.facts import BegunTrace, Fact, Tell

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Of one process. `spans` is None where nobody collects traces."""

    registry: CollectorRegistry
    tell: Tell
    traces: JobTraces | None = None
    spans: tracing.Sends | None = None

    def begin_trace(self, job_id: str, traceparent: str | None) -> BegunTrace | None:
        """See `ApiContext.begin_trace`."""
        return None if self.traces is None else self.traces.begin(job_id, traceparent)

    @contextmanager
    def exposed(self, bind: Bind | None) -> Iterator[None]:
        """Answer `/metrics` there until the block ends, in a process that has no API.

        Raises:
            SettingsError: the address cannot be listened at.
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
        """Send what is left of traces."""
        if self.spans is not None:
            self.spans.close()


def telemetry(now: Callable[[], datetime], spans: tracing.Sends | None = None) -> Telemetry:
    """Counts, and sends the spans of jobs where there is somebody to take them."""
    registry = process_registry()
    counts = FactMetrics(registry)
    if spans is None:
        return Telemetry(registry, telling([counts.hear, log_fact]))
    traces = JobTraces(spans, now)
    return Telemetry(registry, telling([counts.hear, log_fact, traces.hear]), traces, spans)


def telling(hearers: Sequence[Tell]) -> Tell:
    """Tells each of them. What is told is committed: whoever cannot take it in spoils it for nobody else."""

    def tell(fact: Fact) -> None:
        for hearer in hearers:
            try:
                hearer(fact)
            except Exception:
                log.exception("fact_not_taken_in", fact=type(fact).__name__)

    return tell


def collector_of(env: Mapping[str, str], role: str) -> tracing.Sends | None:
    """Where the environment wants traces sent; None, and a word in the log, where what sends them is not installed."""
    instance = f"{os.uname().nodename}-{os.getpid()}"
    missing = partial(log.warning, "no_traces")
    return tracing.collector(env, f"headway-{role}", instance, version("headway"), missing=missing)
