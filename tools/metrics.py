"""docs/reference/metrics.md: the metrics of every program, read from the programs' own registries."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from service.api.http.pressure import Gates
from service.api.http.request_times import RequestTimes
from service.api.routes.upkeep.metrics import OF, Figures
from service.api.routes.upkeep.metrics_money import MoneyFigures
from service.domain.perf.milestones import AT_SUBMIT, ON_THE_WAY
from service.telemetry import telemetry
from service.usecases.ports.rounds import PredictionErrors
from service.usecases.ports.upkeep import ClusterFigures
from worker_agent.host.folders import StateFolder
from worker_agent.telemetry.facts import StateSources
from worker_agent.telemetry.metrics import agent_registry

_NO_ERRORS = PredictionErrors(count=0, ratios=(math.nan,) * 3, coverage=math.nan)
_NOTHING = Figures(
    leader=(0, 0.0),
    cluster=ClusterFigures(
        jobs={},
        oldest_waiting_s=0.0,
        nodes={},
        silent_s=0.0,
        slots={},
        commands_waiting=0,
        oldest_command_s=0.0,
        round_s=(0.0, 0.0),
        gap=0.0,
        changes={},
    ),
    money=MoneyFigures(spend_usd={}, lost_slot_s={}, slot_s={}, budgets=()),
    errors=_NO_ERRORS,
    forecasts={(of, share): _NO_ERRORS for of in OF for share in (AT_SUBMIT, ON_THE_WAY)},
    confined={},
)
"""Figures of an empty cluster, which have the names and labels of all metrics."""


@dataclass(frozen=True, slots=True)
class Described:
    """Metric as a row of the page."""

    name: str
    kind: str
    labels: tuple[str, ...]
    means: str

    def __str__(self) -> str:
        """Return the row."""
        labels = "{" + ",".join(self.labels) + "}" if self.labels else ""
        return f"- `{self.name}{labels}` ({self.kind}): {' '.join(self.means.split())}"


def described(registry: CollectorRegistry) -> list[Described]:
    """Return the metrics of a registry, ordered by name."""
    return sorted(_described(registry), key=lambda one: one.name)


def _described(registry: CollectorRegistry) -> Iterator[Described]:
    for collector in list(registry._collector_to_names):  # noqa: SLF001 - a counter has no public labels
        of_counter = tuple(getattr(collector, "_labelnames", ()))
        for metric in collector.collect():
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            yield Described(name, metric.type, of_counter or _labels(metric), metric.documentation)


def _labels(metric: Metric) -> tuple[str, ...]:
    """Return the labels of a family or of its samples, without those that its type adds."""
    given: Iterable[str] = getattr(metric, "_labelnames", ()) or sorted(
        {label for sample in metric.samples for label in sample.labels}
    )
    return tuple(label for label in given if label not in {"quantile", "le"})


def page() -> str:
    """Return the page."""
    with tempfile.TemporaryDirectory() as folder:
        sources = StateSources(
            slots=lambda: (), holding=lambda: (), waiting=lambda: 0, state=StateFolder(Path(folder))
        )
        sections = [
            ("The cluster", _CLUSTER, described(_NOTHING.registry(Gates()))),
            ("A process of the service", _PROCESS, described(_process())),
            ("An agent", _AGENT, described(agent_registry(sources)[0])),
        ]
    parts = [_LEAD]
    for title, lead, rows in sections:
        own = [str(row) for row in rows if row.name.startswith("headway_")]
        parts.append("\n".join([f"## {title}\n\n{lead}\n", *own, ""]))
    return "\n".join(parts)


def _process() -> CollectorRegistry:
    registry = telemetry(lambda: datetime.now(UTC)).registry
    RequestTimes(_nobody, registry)
    return registry


async def _nobody(*_: object) -> None:
    """Do nothing: this application is never called."""


_LEAD = """# Metrics

`GET /metrics` of the API answers in the text format of Prometheus. A scheduler without an API and an agent serve it at a configured address
([settings](settings.md)). The lists show labels in braces. `deploy/monitoring` has a scrape configuration, a dashboard and alerts. The end of a name is the unit. Every process also has the usual
`process_*` metrics, and the service `python_gc_*`.
"""
_CLUSTER = """Read from the database at each scrape, so every API reports the same: take the `max` over APIs, not the sum. Counters of money and lost time
restart every calendar month. `headway_http_rejected_total` counts in its process only."""
_PROCESS = "Counted by each process: add up all processes."
_AGENT = "Of one host."
