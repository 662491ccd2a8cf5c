"""`headway machines`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from headway.cli.context import Cli
from headway.cli.main import app
from headway.contract.values.markets import Market
from headway.contract.views.machines import MachineView
from tests.unit.headway.stub import NOW, StubService, page


def machine_view(**fields: Any) -> MachineView:
    return MachineView(
        **{
            "id": "m1",
            "provider": "cloud",
            "region": "here",
            "zone": "",
            "instance_type": "small",
            "device_kind": "cpu",
            "slots": 2,
            "market": Market.SPOT,
            "usd_per_h": 0.12,
            "state": "running",
            "reason": "JOINED",
            "message": "spot small: worth $0.24/h at a price of $0.12/h, for digits (starts)",
            "external_id": "i-1",
            "node": "spot-1",
            "requested_at": NOW,
            "state_since": NOW,
            "billed_from": NOW,
            "billed_to": None,
            "min_billed_s": 60.0,
            "billed_s": 90.0,
            "cost_usd": 0.003,
            **fields,
        }
    )


@pytest.mark.parametrize(("flags", "query"), [((), "true"), (("--all",), None)])
def test_machines_say_why_and_for_how_much(flags: tuple[str, ...], query: str | None) -> None:
    service = StubService()
    wanted = machine_view(
        id="m2", external_id=None, node=None, billed_from=None, billed_s=0.0, cost_usd=0.0, state="wanted"
    )
    service.on("GET /api/v1/machines", page(machine_view(), wanted))
    result = CliRunner().invoke(app, ["machines", *flags], obj=Cli(connect=service.client))
    assert result.exit_code == 0, result.output
    for word in (
        "i-1",
        "spot-1",
        "small here",
        "running",
        "2 cpu",
        "0.12",
        "1m30s",
        "$0.0030",
        "for digits (starts)",
    ):
        assert word in result.output
    (asked,) = [one for one in service.requests if one.url.path == "/api/v1/machines"]
    assert asked.url.params.get("open") == query


def test_without_machines_it_says_how_to_get_some() -> None:
    service = StubService()
    service.on("GET /api/v1/machines", page())
    result = CliRunner().invoke(app, ["machines"], obj=Cli(connect=service.client))
    assert "HEADWAY_PROVIDERS" in result.output


def test_for_programs() -> None:
    service = StubService()
    service.on("GET /api/v1/machines", page(machine_view()))
    result = CliRunner().invoke(app, ["machines", "-o", "json"], obj=Cli(connect=service.client))
    assert json.loads(result.output)["items"][0]["external_id"] == "i-1"
