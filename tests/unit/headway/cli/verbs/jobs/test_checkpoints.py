"""`headway checkpoints`."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headway.cli.context import Cli
from headway.cli.main import app
from headway.contract.values.quantities import size_text
from headway.contract.views.stored_files import CheckpointPage, CheckpointView
from tests.unit.headway.stub import NOW, StubService, ok, refusal

ROUTE = "GET /api/v1/jobs/digits/checkpoints"


def view(**fields: Any) -> CheckpointView:
    return CheckpointView(
        **{
            "name": "00000002-000001-000000000024",
            "generation": 2,
            "epoch": 1,
            "samples_in_epoch": 24,
            "samples": 1024,
            "saved_at": NOW,
            "size_bytes": 3 << 19,
            "complete": True,
            "restored_next": True,
            **fields,
        }
    )


def run(service: StubService, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["checkpoints", *arguments], obj=Cli(connect=service.client))


def test_they_are_shown_with_what_is_restored_and_what_is_wrong() -> None:
    service = StubService()
    broken = view(
        samples=None, saved_at=None, complete=False, problem="it has no manifest", restored_next=False
    )
    service.on(ROUTE, ok(CheckpointPage(items=[broken, view()], next_cursor="x", uri="s3://b/checkpoints/j")))
    result = run(service, "digits", "--limit", "2")
    assert result.exit_code == 0, result.output
    assert service.sent(ROUTE)[0].url.params["limit"] == "2"
    assert "it has no manifest" in result.output
    assert "1,024" in result.output
    assert "1.5 MiB" in result.output
    assert "the job would restore it" in result.output
    assert "s3://b/checkpoints/j" in result.output
    assert "Older checkpoints" in result.output


def test_programs_get_the_contract_and_people_the_note() -> None:
    service = StubService()
    page = CheckpointPage(items=[], uri="file:///x", note="No checkpoint was saved.")
    service.on(ROUTE, ok(page))
    assert run(service, "digits").output == "No checkpoint was saved.\n"
    assert CheckpointPage.model_validate_json(run(service, "digits", "-o", "json").output) == page


def test_a_refusal_is_said() -> None:
    service = StubService()
    service.on(ROUTE, refusal(404, "not_found", "no job is called digits."))
    result = run(service, "digits")
    assert result.exit_code == 1
    assert "no job is called digits" in result.output


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1_073_741_823, "1024 MiB"), (5 << 30, "5 GiB")],
)
def test_a_size_in_words(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text
