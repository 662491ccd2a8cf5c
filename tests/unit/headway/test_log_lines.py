from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

import pytest
import structlog

from headway.errors import HeadwayError
from headway.log_lines import log_as_json, wants_json
from service.environment import SettingsError
from service.log import configure_log
from worker_agent.main import _with_ids

TOKEN = "hw_" + "a" * 40


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Yield the stream of a JSON log; restore logging afterwards."""
    before, handlers = structlog.get_config(), logging.getLogger().handlers
    stream = io.StringIO()
    log_as_json(stream, partial(_with_ids, "node-a"))
    yield stream
    structlog.configure(**before)
    logging.getLogger().handlers = handlers


def lines(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_a_line_is_an_object_with_what_is_bound(written: io.StringIO) -> None:
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        structlog.get_logger().info("ran\nover", job="j1", gap=0.5)
    structlog.get_logger().debug("of no interest")
    (line,) = lines(written)
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {
        "level": "info",
        "event": "ran\nover",
        "job": "j1",
        "gap": 0.5,
        "request_id": "r1",
        "node_name": "node-a",
    }
    assert written.getvalue().startswith('{"time": ')


def test_a_run_is_a_generation_of_a_job(written: io.StringIO) -> None:
    structlog.get_logger().info("released", run="j1/7")
    structlog.get_logger().info("odd", run="elsewhere")
    first, second = lines(written)
    assert (first["job"], first["generation"]) == ("j1", 7)
    assert "job" not in second


def test_no_line_holds_a_credential(written: io.StringIO) -> None:
    def fails(secret: str) -> None:
        raise ValueError(f"of {secret}")

    try:
        fails(TOKEN)
    except ValueError:
        structlog.get_logger().exception("failed", url=f"redis://u:{TOKEN}@h/0", given=TOKEN)
    logging.getLogger("some.library").warning("refused %s", TOKEN)
    assert TOKEN not in written.getvalue()
    first, second = lines(written)
    assert "ValueError: of [hidden]" in first["exception"]
    assert (second["logger"], second["event"], second["level"]) == (
        "some.library",
        "refused [hidden]",
        "warning",
    )


def test_what_json_has_no_word_for_is_text(written: io.StringIO) -> None:
    structlog.get_logger().info("odd", number=float("nan"), what={1, 2}, where=object)
    (line,) = lines(written)
    assert line["number"] == "nan"


@pytest.mark.parametrize(
    ("given", "default", "wanted"), [("json", False, True), ("text", True, False), ("", True, True)]
)
def test_the_environment_chooses(given: str, default: bool, wanted: bool) -> None:
    assert wants_json({"HEADWAY_LOG_FORMAT": given}, default=default) is wanted


def test_a_format_that_is_none_is_refused() -> None:
    with pytest.raises(HeadwayError, match="HEADWAY_LOG_FORMAT is 'xml'"):
        wants_json({"HEADWAY_LOG_FORMAT": "xml"}, default=True)
    with pytest.raises(SettingsError, match="json or text"):
        configure_log({"HEADWAY_LOG_FORMAT": "xml"})
