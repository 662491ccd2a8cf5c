"""`/metrics`: metrics in the text format of Prometheus.

It names projects and budgets, so it is for `HEADWAY_METRICS_TOKEN` and for viewers of all projects, unless it is public.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from headway.contract.health import FaultCause
from service.api.http.access import require_monitor
from service.api.http.context import Context
from service.api.http.pressure import Gates, Traffic
from service.api.http.problems import PROBLEM
from service.api.routes.upkeep.metrics_cluster import cluster_metrics
from service.api.routes.upkeep.metrics_money import MoneyFigures, money_figures, money_metrics
from service.domain.perf.milestones import AT_SUBMIT, ON_THE_WAY
from service.usecases.ports.rounds import PredictionErrors
from service.usecases.ports.upkeep import ClusterFigures

SCORED_FOR = timedelta(days=1)
"""Age up to which predictions are scored."""
QUANTILES = (0.1, 0.5, 0.9)
OF: tuple[Literal["time"], Literal["cost"]] = ("time", "cost")

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    operation_id="metrics",
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        401: PROBLEM,
        403: PROBLEM,
        503: PROBLEM,
    },
    dependencies=[Depends(require_monitor)],
)
async def metrics(request: Request, context: Context) -> Response:
    """Return metrics of the cluster, of predictions, of spending this month, and of this process."""
    since = context.now() - SCORED_FOR
    async with context.transactions.begin() as tx:
        errors = await tx.round_queries.prediction_errors(since, QUANTILES)
        forecasts = {
            (of, share): await tx.round_queries.forecast_errors(of, share, since, QUANTILES)
            for of in OF
            for share in (AT_SUBMIT, ON_THE_WAY)
        }
        money = await money_figures(tx, context.now())
        confined = await tx.nodes.open_quarantines()
        leader = await tx.round_queries.leader()
        cluster = await tx.operations.figures(context.now())
    causes = Counter(one.cause for one in confined)
    figures = Figures(
        leader=leader, cluster=cluster, money=money, errors=errors, forecasts=forecasts, confined=causes
    )
    registries = (figures.registry(request.app.state.gates), context.registry)
    # In a thread, since a process that has served many routes has many samples.
    text = await asyncio.to_thread(lambda: b"".join(map(generate_latest, registries)))
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Inputs of one answer, read from the database."""

    leader: tuple[int, float]
    """Term, and seconds since its renewal."""
    cluster: ClusterFigures
    money: MoneyFigures
    errors: PredictionErrors
    forecasts: Mapping[tuple[Literal["time", "cost"], float], PredictionErrors]
    confined: Mapping[FaultCause, int]
    """Number of slots in quarantine, by cause."""

    def registry(self, gates: Gates) -> CollectorRegistry:
        """Return a registry with all metrics, including the requests that this process has refused."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collected(self, gates))
        return registry


class _Collected(Collector):
    """The metrics of one answer."""

    def __init__(self, figures: Figures, gates: Gates) -> None:
        self._figures = figures
        self._gates = gates

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus's client."""
        figures = self._figures
        yield _rejected(self._gates)
        yield from _leader(*figures.leader)
        yield from cluster_metrics(figures.cluster)
        yield from money_metrics(figures.money)
        yield from _predictions(figures.errors)
        yield _forecasts(figures.forecasts)
        yield _quarantines(figures.confined)


def _leader(term: int, silent_s: float) -> Iterator[Metric]:
    yield GaugeMetricFamily("headway_leader_term", "Schedulers that have led so far.", value=term)
    yield GaugeMetricFamily(
        "headway_leader_silent_seconds",
        "Seconds since the leading scheduler renewed its term: 2 or less while one leads.",
        value=silent_s,
    )


def _rejected(gates: Gates) -> Metric:
    rejected = CounterMetricFamily(
        "headway_http_rejected",
        "Requests that this process has answered with 429, by their kind.",
        labels=["traffic"],
    )
    for kind in Traffic:
        rejected.add_metric([kind], gates.of(kind).rejected[kind])
    return rejected


def _predictions(errors: PredictionErrors) -> Iterator[Metric]:
    text = "Predicted / measured speed of generations that were started within the last day."
    ratio = Metric("headway_prediction_error_ratio", text, "summary")
    _add_errors(ratio, {}, errors)
    yield ratio
    yield GaugeMetricFamily(
        "headway_prediction_coverage_ratio",
        "Share of these speeds between the P10 and P90 of their prediction; ideally 0.8.",
        value=errors.coverage,
    )


def _forecasts(forecasts: Mapping[tuple[Literal["time", "cost"], float], PredictionErrors]) -> Metric:
    text = "Forecast / measured time and cost to the end of jobs that succeeded within the last day."
    ratio = Metric("headway_forecast_error_ratio", text, "summary")
    for (of, share), errors in forecasts.items():
        _add_errors(ratio, {"of": of, "after": f"{share:g}"}, errors)
    return ratio


def _add_errors(ratio: Metric, labels: dict[str, str], errors: PredictionErrors) -> None:
    """Add the quantiles, which the database computes, and the count of a summary."""
    for quantile, value in zip(QUANTILES, errors.ratios, strict=True):
        ratio.add_sample(ratio.name, {**labels, "quantile": f"{quantile:g}"}, value)
    ratio.add_sample(f"{ratio.name}_count", labels, errors.count)


def _quarantines(slots: Mapping[FaultCause, int]) -> Metric:
    gauge = GaugeMetricFamily(
        "headway_quarantined_slots",
        "Slots in quarantine because of faulty devices, by cause.",
        labels=["cause"],
    )
    for cause in FaultCause:
        gauge.add_metric([cause], slots.get(cause, 0))
    return gauge
