"""`/metrics`: metrics in the text format of Prometheus.

It needs a token only if `HEADWAY_METRICS_TOKEN` is set, because it contains only totals.
"""

from __future__ import annotations

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
from service.api.http.context import Context, require_monitor
from service.api.http.pressure import Gates, Traffic
from service.api.routes.upkeep.metrics_cluster import Cluster
from service.api.routes.upkeep.metrics_money import Money, MoneyFigures, money_figures
from service.domain.perf.marks import AT_SUBMIT, ON_THE_WAY
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
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
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
    text = generate_latest(figures.registry(request.app.state.gates)) + generate_latest(context.registry)
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
        registry.register(_TurnedAway(gates))
        registry.register(_Leader(*self.leader))
        registry.register(Cluster(self.cluster))
        registry.register(Money(self.money))
        registry.register(_Predictions(self.errors))
        registry.register(_Forecasts(self.forecasts))
        registry.register(_Quarantines(self.confined))
        return registry


class _Leader(Collector):
    """Metrics of the leader: its term, and the seconds since it renewed the term."""

    def __init__(self, term: int, silent_s: float) -> None:
        self._term = term
        self._silent_s = silent_s

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus's client."""
        yield GaugeMetricFamily("headway_leader_term", "Schedulers that have led so far.", value=self._term)
        yield GaugeMetricFamily(
            "headway_leader_silent_seconds",
            "Seconds since the leading scheduler renewed its term: 2 or less while one leads.",
            value=self._silent_s,
        )


class _TurnedAway(Collector):
    """Metric `headway_http_rejected_total`: requests answered with 429 since the process began."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus's client."""
        rejected = CounterMetricFamily(
            "headway_http_rejected",
            "Requests that this process has answered with 429, by their kind.",
            labels=["traffic"],
        )
        for kind in Traffic:
            rejected.add_metric([kind], self._gates.of(kind).rejected[kind])
        yield rejected


class _Predictions(Collector):
    """Metric `headway_prediction_error_ratio`, a summary whose quantiles the database computes."""

    def __init__(self, errors: PredictionErrors) -> None:
        self._errors = errors

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus's client."""
        name, errors = "headway_prediction_error_ratio", self._errors
        text = "Predicted / measured speed of generations that were started within the last day."
        ratio = Metric(name, text, "summary")
        for quantile, value in zip(QUANTILES, errors.ratios, strict=True):
            ratio.add_sample(name, {"quantile": f"{quantile:g}"}, value)
        ratio.add_sample(f"{name}_count", {}, errors.count)
        yield ratio
        yield GaugeMetricFamily(
            "headway_prediction_coverage_ratio",
            "Share of these speeds between the P10 and P90 of their prediction; ideally 0.8.",
            value=errors.coverage,
        )


class _Quarantines(Collector):
    """Metric `headway_quarantined_slots`: slots in quarantine, by the fault of their device."""

    def __init__(self, slots: Mapping[FaultCause, int]) -> None:
        self._slots = slots

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus's client."""
        gauge = GaugeMetricFamily(
            "headway_quarantined_slots",
            "Slots in quarantine because of faulty devices, by cause.",
            labels=["cause"],
        )
        for cause in FaultCause:
            gauge.add_metric([cause], self._slots.get(cause, 0))
        yield gauge


class _Forecasts(Collector):
    """Metric `headway_forecast_error_ratio` of time and cost, by the share of work done at the forecast."""

    def __init__(self, errors: Mapping[tuple[Literal["time", "cost"], float], PredictionErrors]) -> None:
        self._errors = errors

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus's client."""
        name = "headway_forecast_error_ratio"
        text = "Forecast / measured time and cost to the end of jobs that succeeded within the last day."
        ratio = Metric(name, text, "summary")
        for (of, share), errors in self._errors.items():
            labels = {"of": of, "after": f"{share:g}"}
            for quantile, value in zip(QUANTILES, errors.ratios, strict=True):
                ratio.add_sample(name, {**labels, "quantile": f"{quantile:g}"}, value)
            ratio.add_sample(f"{name}_count", labels, errors.count)
        yield ratio
