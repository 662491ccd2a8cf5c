"""`/metrics`: what monitoring reads, in the text format of Prometheus. Without `HEADWAY_METRICS_TOKEN` none is asked for: it
holds only totals.
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
from service.api.context import Context, require_monitor
from service.api.metrics_cluster import Cluster
from service.api.metrics_money import Money, MoneyFigures, money_figures
from service.api.pressure import Gates, Traffic
from service.domain.perf.marks import AT_SUBMIT, ON_THE_WAY
from service.usecases.monitoring_ports import ClusterFigures
from service.usecases.records import PredictionErrors

SCORED_FOR = timedelta(days=1)
"""Predictions this young are scored."""
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
    """The cluster as it is, how good the predictions of the last day were, what was spent this month, and what this process
    has done.
    """
    since = context.now() - SCORED_FOR
    async with context.transactions.begin() as tx:
        errors = await tx.decision_queries.prediction_errors(since, QUANTILES)
        forecasts = {
            (of, share): await tx.decision_queries.forecast_errors(of, share, since, QUANTILES)
            for of in OF
            for share in (AT_SUBMIT, ON_THE_WAY)
        }
        money = await money_figures(tx, context.now())
        confined = await tx.quarantines.open()
        leader = await tx.decision_queries.leader()
        cluster = await tx.monitoring.cluster(context.now())
    causes = Counter(one.cause for one in confined)
    figures = Figures(
        leader=leader, cluster=cluster, money=money, errors=errors, forecasts=forecasts, confined=causes
    )
    text = generate_latest(figures.registry(request.app.state.gates)) + generate_latest(context.registry)
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was looked up for one answer."""

    leader: tuple[int, float]
    """The term, and the seconds since it was renewed."""
    cluster: ClusterFigures
    money: MoneyFigures
    errors: PredictionErrors
    forecasts: Mapping[tuple[Literal["time", "cost"], float], PredictionErrors]
    confined: Mapping[FaultCause, int]
    """Slots in quarantine."""

    def registry(self, gates: Gates) -> CollectorRegistry:
        """As metrics, with whom this process has turned away."""
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
    """`headway_leader_term` grows with every scheduler that takes over; `headway_leader_silent_seconds` says that none does."""

    def __init__(self, term: int, silent_s: float) -> None:
        self._term = term
        self._silent_s = silent_s

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus's client asks for them."""
        yield GaugeMetricFamily("headway_leader_term", "Schedulers that have led so far.", value=self._term)
        yield GaugeMetricFamily(
            "headway_leader_silent_seconds",
            "Seconds since the leading scheduler has renewed its term: 2 or less while one leads.",
            value=self._silent_s,
        )


class _TurnedAway(Collector):
    """`headway_http_rejected_total`: answered with 429 since the process began."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus's client asks for them."""
        rejected = CounterMetricFamily(
            "headway_http_rejected",
            "Requests that this process has answered with 429, by their kind.",
            labels=["traffic"],
        )
        for kind in Traffic:
            rejected.add_metric([kind], self._gates.of(kind).rejected[kind])
        yield rejected


class _Predictions(Collector):
    """`headway_prediction_error_ratio` is a summary whose quantiles were worked out by the database."""

    def __init__(self, errors: PredictionErrors) -> None:
        self._errors = errors

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus's client asks for them."""
        name, errors = "headway_prediction_error_ratio", self._errors
        text = "Predicted / measured speed of generations that were started within the last day."
        ratio = Metric(name, text, "summary")
        for quantile, value in zip(QUANTILES, errors.ratios, strict=True):
            ratio.add_sample(name, {"quantile": f"{quantile:g}"}, value)
        ratio.add_sample(f"{name}_count", {}, errors.count)
        yield ratio
        yield GaugeMetricFamily(
            "headway_prediction_coverage_ratio",
            "Share of these speeds that lay between the P10 and P90 of their prediction; 0.8 is honest.",
            value=errors.coverage,
        )


class _Quarantines(Collector):
    """`headway_quarantined_slots`: how many slots are kept from jobs, by what was noticed of their devices."""

    def __init__(self, slots: Mapping[FaultCause, int]) -> None:
        self._slots = slots

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus's client asks for them."""
        gauge = GaugeMetricFamily(
            "headway_quarantined_slots",
            "Slots that no job gets since their devices are bad, by what was noticed.",
            labels=["cause"],
        )
        for cause in FaultCause:
            gauge.add_metric([cause], self._slots.get(cause, 0))
        yield gauge


class _Forecasts(Collector):
    """`headway_forecast_error_ratio`, of time and of cost, by the share of the work that was done when it was made."""

    def __init__(self, errors: Mapping[tuple[Literal["time", "cost"], float], PredictionErrors]) -> None:
        self._errors = errors

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus's client asks for them."""
        name = "headway_forecast_error_ratio"
        text = "Forecast / measured time and cost to the end of jobs that succeeded within the last day."
        ratio = Metric(name, text, "summary")
        for (of, share), errors in self._errors.items():
            labels = {"of": of, "after": f"{share:g}"}
            for quantile, value in zip(QUANTILES, errors.ratios, strict=True):
                ratio.add_sample(name, {**labels, "quantile": f"{quantile:g}"}, value)
            ratio.add_sample(f"{name}_count", labels, errors.count)
        yield ratio
