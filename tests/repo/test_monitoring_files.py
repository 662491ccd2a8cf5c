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

from service.adapters.metrics import FactMetrics, StandstillMetrics, process_registry
from service.api.http.request_times import RequestTimes
from worker_agent.host.folders import StateFolder
from worker_agent.telemetry.facts import StateSources
from worker_agent.telemetry.metrics import agent_registry

ROOT = Path(__file__).parents[2]
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


ENDINGS = ("_total", "_count", "_sum", "_bucket")
HIDDEN = {"headway_budget_remaining_dollars"}
"""The share says it for budgets of all kinds."""


async def _no_app(*_: object) -> None:
    """Nobody asks it anything."""


def named(folder: Path) -> set[str]:
    """Every name of ours: what the sources say of those that are looked at, and the registries of those that are counted."""
    sources = "".join(file.read_text() for file in (ROOT / "service" / "api").rglob("metrics*.py"))
    of_service = process_registry()
    FactMetrics(of_service)
    StandstillMetrics(of_service)
    RequestTimes(_no_app, of_service)
    seen = StateSources(slots=list, holding=list, waiting=lambda: 0, state=StateFolder(folder))
    of_agent, _ = agent_registry(seen)
    families = [one.name for registry in (of_service, of_agent) for one in registry.collect()]
    ours = {name for name in families if name.startswith("headway_")}
    return ours | set(re.findall(r'"(headway_[a-z_]+)"', sources))


def plain(name: str) -> str:
    """The name without the ending that its type adds."""
    return next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)


def test_queries_ask_for_what_there_is(tmp_path: Path) -> None:
    there = named(tmp_path)
    for query in QUERIES:
        asked = set(re.findall(r"headway_[a-z_]+", query))
        assert asked, query
        assert {one for one in asked if not {one, plain(one)} & there} == set(), query


def test_every_metric_is_on_the_dashboard(tmp_path: Path) -> None:
    asked = {name for query in QUERIES for name in re.findall(r"headway_[a-z_]+", query)}
    assert named(tmp_path) - asked - {plain(one) for one in asked} == HIDDEN


def test_names_end_with_a_base_unit_or_count_things(tmp_path: Path) -> None:
    """As Prometheus wants them: no milliseconds, no percent, no `_total` of what may fall."""
    for name in named(tmp_path):
        assert not re.search(
            r"_(ms|millis|milliseconds|minutes|hours|percent|mb|kb|gb|total|count)$", name
        ), name


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
