"""The dashboard and the alerts ask for metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "monitoring"
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana-headway.json").read_text())
QUERIES = [rule["expr"] for rule in ALERTS] + [
    target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]
]


def metrics() -> set[str]:
    """Every name that the sources give to a metric, with the endings that its type adds."""
    sources = "".join(file.read_text() for file in (ROOT / "service" / "api").glob("metrics*.py"))
    named = set(re.findall(r'"(headway_[a-z_]+)"', sources))
    return named | {f"{name}{ending}" for name in named for ending in ("_total", "_count")}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_what_there_is(query: str) -> None:
    asked = set(re.findall(r"headway_[a-z_]+", query))
    assert asked
    assert asked <= metrics()


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {name for query in QUERIES for name in re.findall(r"headway_[a-z_]+", query)}
    shown |= {name.removesuffix("_total") for name in shown}
    named = {name for name in metrics() if not name.endswith(("_total", "_count"))}
    hidden = {"headway_budget_remaining_dollars"}  # the share says it for budgets of all kinds
    assert named - shown == hidden


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["for"]
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert {"summary", "what_to_do"} == set(rule["annotations"])


def test_panels_do_not_lie_over_one_another() -> None:
    places = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: queries are not parsed"
)
def test_prometheus_takes_them() -> None:
    for what, name in (("config", "prometheus.yaml"), ("rules", "alerts.yaml")):
        subprocess.run(["promtool", "check", what, FOLDER / name], check=True)
