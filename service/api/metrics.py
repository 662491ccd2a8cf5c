"""`/metrics`: what monitoring reads, in the text format of Prometheus. No token is asked for: it holds only totals."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from service.api.context import Context
from service.usecases.records import PredictionErrors

SCORED_FOR = timedelta(days=1)
"""Predictions this young are scored."""
QUANTILES = (0.1, 0.5, 0.9)

router = APIRouter(tags=["health"])


@router.get("/metrics", operation_id="metrics")
async def metrics(context: Context) -> Response:
    """How good the predictions of the last day were."""
    async with context.transactions.begin() as tx:
        errors = await tx.decision_queries.prediction_errors(context.now() - SCORED_FOR, QUANTILES)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Predictions(errors))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


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
