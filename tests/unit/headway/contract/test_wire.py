"""Messages of every supported version are understood: each frozen one is read, with all of its fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter

from headway.contract import agents, credentials, executions, orders, rank_lines, runtime
from tests.unit.headway.contract.examples import GOLDEN, everything
from worker_agent.launcher import protocol

VERSIONS = sorted(folder.name for folder in GOLDEN.iterdir())
FILES = sorted(GOLDEN.rglob("*.json"))
_ENTRY: TypeAdapter[Any] = TypeAdapter(agents.ReportEntry)


def read(name: str, value: Any) -> Any:
    """The message as this version reads it, as plain values again."""
    folder, _, kind = name.partition("/")
    if name == "order":
        return json.loads(orders.order_to_json(orders.order_from_json(json.dumps(value))))
    if name == "launcher/plan":
        return json.loads(json.dumps(protocol.LaunchPlan.from_json(value).to_json()))
    match folder:
        case "commands":
            return agents.COMMANDS.validate_python(value).model_dump(mode="json")
        case "entries":
            return _ENTRY.validate_python(value).model_dump(mode="json")
        case "http":
            (where,) = [one for one in (agents, credentials, executions) if hasattr(one, kind)]
            return getattr(where, kind).model_validate_json(json.dumps(value)).model_dump(mode="json")
        case "ranks":
            return json.loads(rank_lines.to_line(rank_lines.from_line(json.dumps(value))))
        case "launcher":
            (message,) = protocol.Decoder().feed(json.dumps(value).encode() + b"\n")
            return json.loads(protocol.encode(message))
    raise AssertionError(f"nobody reads {name}")


def lost(old: Any, new: Any, path: str = "") -> list[str]:
    """Return the parts of the old value that the new one, which may have more, lacks."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [one for key in old for one in lost(old[key], new.get(key), f"{path}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [one for index, item in enumerate(old) for one in lost(item, new[index], f"{path}[{index}]")]
    return [] if old == new else [f"{path}: {old!r} became {new!r}"]


def name_of(file: Path) -> str:
    return str(file.relative_to(GOLDEN).with_suffix("")).partition("/")[2]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(GOLDEN)))
def test_what_was_ever_said_is_still_understood(file: Path) -> None:
    said = json.loads(file.read_text())
    assert lost(said, read(name_of(file), said)) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(GOLDEN)))
def test_fields_of_a_newer_version_are_ignored(file: Path) -> None:
    said = json.loads(file.read_text())
    newer = {**said, "tempo": 3, "colour": {"deep": [1]}}
    if name_of(file) == "ranks/metrics":
        assert "tempo" not in read("ranks/metrics", newer)["values"]
    assert read(name_of(file), newer) == read(name_of(file), said)


def test_every_message_of_this_version_has_an_example() -> None:
    """A new kind of message gets one in `examples.py`, and a file with the next release."""
    wire = everything()
    kinds = {agent.model_fields["kind"].default for agent in get_args(agents.AnyCommand)}
    assert {name.removeprefix("commands/") for name in wire if name.startswith("commands/")} == kinds
    assert {
        name.removeprefix("entries/") for name in wire if name.startswith("entries/")
    } == agents.ENTRY_KINDS
    said = {kind.TYPE for kind in get_args(runtime.Message)}
    assert {name.removeprefix("ranks/") for name in wire if name.startswith("ranks/")} == said
    told = {kind.__name__.lower() for kind in get_args(protocol.Message)} - {"unknown"}
    assert {name.removeprefix("launcher/") for name in wire if name.startswith("launcher/")} == {
        *told,
        "plan",
    }


def test_every_example_has_all_fields() -> None:
    """A field at its default proves nothing: an old version may have dropped it."""
    for name, value in everything().items():
        assert read(name, value) == json.loads(json.dumps(value)), name


@pytest.mark.parametrize("version", VERSIONS)
def test_the_files_of_a_version_are_complete(version: str) -> None:
    """A file that somebody deletes is a message that is not looked at any more."""
    present = {name_of(file) for file in (GOLDEN / version).rglob("*.json")}
    assert present >= {"order", "launcher/plan", "http/ReportRequest", "commands/run", "ranks/progress"}


def test_news_of_a_newer_agent_wait_for_nobody() -> None:
    known = json.loads((GOLDEN / VERSIONS[0] / "entries" / "released.json").read_text())
    newer = {"kind": "dance", "sequence": 9, "steps": [1, 2]}
    report = agents.ReportRequest.model_validate({"instance": "i", "entries": [newer, known, newer]})
    assert [entry.kind for entry in report.entries] == ["released"]
    assert report.unread == ["dance"]


@pytest.mark.parametrize(
    "entry", [{"kind": "released"}, {"kind": 3, "sequence": 1}, {"sequence": 1}, "dance", None]
)
def test_nonsense_is_not_taken_for_news_of_a_newer_agent(entry: object) -> None:
    with pytest.raises(ValueError, match="entries"):
        agents.ReportRequest.model_validate({"instance": "i", "entries": [entry]})
