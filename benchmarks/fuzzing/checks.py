"""Answers of a service and of the parsers to cases: None if a case was handled as it should be, else the problem."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzzing.cases import JOB_ID, NODE_ID, Case, Surface
from headway import jobfile
from headway.contract.manifest import Manifest
from headway.contract.rank_lines import from_line
from headway.errors import HeadwayError
from worker_agent.runs.bundles import BadBundle, extract

ANSWER_S = 30.0
"""Longest time in seconds until an answer begins."""
_ERROR = 500


@dataclass(frozen=True, slots=True)
class Problem:
    """Case that was not handled: `escape` for a write outside of a folder, else an error of the service or of a parser."""

    case: Case
    escape: bool
    found: str


@dataclass(frozen=True, slots=True)
class Target:
    """A running service: its port, the tokens by role, and the ids of its job and its node."""

    port: int
    tokens: Mapping[str, str]
    job_id: str
    node_id: str


async def check_request(case: Case, target: Target) -> Problem | None:
    """Send a request, and return the problem if the service answers with an error of its own or not at all."""
    found = ""
    try:
        async with asyncio.timeout(ANSWER_S):
            status, answer = await _answer(case, target)
        if status >= _ERROR:
            found = f"{status}: {answer[:500].decode(errors='replace')}"
        elif b"Traceback (most recent" in answer:
            found = f"{status} with a stack trace"
    except (TimeoutError, OSError, asyncio.IncompleteReadError, ValueError) as error:
        found = f"no answer: {type(error).__name__} {error}"
    return Problem(case, escape=False, found=found) if found else None


async def _answer(case: Case, target: Target) -> tuple[int, bytes]:
    """Return the status and the begin of the body. Each request has a connection of its own."""
    body = _with_ids(case.data, target)
    path = _with_ids(case.path.encode("latin-1"), target).decode("latin-1")
    headers = {name: _one_line(value) for name, value in case.headers.items()}
    headers |= {"host": "headway", "connection": "close", "content-length": str(len(body))}
    if token := target.tokens.get(case.role):
        headers["authorization"] = f"Bearer {token}"
    lines = [f"{case.method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        endless = b"text/event-stream" in head.lower()
        return status, b"" if endless else await reader.read(4096)
    finally:
        writer.close()


def _one_line(value: str) -> str:
    """Return a value that ends no header: line breaks would make other requests of it."""
    return "".join(letter for letter in value if letter not in "\r\n")[:8000].strip()


def _with_ids(data: bytes, target: Target) -> bytes:
    for mark, known in ((JOB_ID, target.job_id), (NODE_ID, target.node_id)):
        for written in (mark, mark.replace("{", "%7B").replace("}", "%7D")):
            data = data.replace(written.encode(), known.encode())
    return data


def check_parser(case: Case) -> Problem | None:
    """Pass an input to its parser, and return the problem if the parser raises anything but what it says it raises."""
    try:
        match case.surface:
            case Surface.JOB_FILES:
                jobfile.parse(case.data.decode(errors="replace"), "job.yaml")
            case Surface.RANK_MESSAGES:
                from_line(case.data.decode(errors="replace"))
            case Surface.MANIFESTS:
                Manifest.from_text(case.data)
    except (HeadwayError, ValueError) as error:
        if isinstance(error, HeadwayError) or case.surface is not Surface.JOB_FILES:
            return None
        return Problem(case, escape=False, found=f"{type(error).__name__}: {error}"[:500])
    except Exception as error:  # noqa: BLE001  # every other error is what is searched for
        return Problem(case, escape=False, found=f"{type(error).__name__}: {error}"[:500])
    return None


def check_archive(case: Case, most_entries: int = 2000) -> Problem | None:
    """Unpack an archive as an agent does, and return the problem if anything appears outside of its folder."""
    with tempfile.TemporaryDirectory(prefix="headway-fuzz-") as name:
        around = Path(name)
        work, packed = around / "work", around / "packed"
        work.mkdir()
        packed.write_bytes(case.data)
        try:
            extract(packed, work, None, most_entries)
        except BadBundle as error:
            if error.retryable:
                return Problem(case, escape=False, found=f"the host is blamed: {error}")
        outside = sorted(one.name for one in around.iterdir())
        if outside != ["packed", "work"] or packed.read_bytes() != case.data:
            return Problem(case, escape=True, found=f"outside of the folder: {outside}")
    return None


def save(problem: Problem, folder: Path, number: int) -> None:
    """Write a failing case to a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = {"found": problem.found, **problem.case.to_json()}
    (folder / f"{problem.case.surface}-{number:04}.json").write_text(
        json.dumps(saved, indent=1), encoding="utf-8"
    )


def load(folder: Path) -> list[Case]:
    """Return the saved cases of a folder, by name."""
    return [
        Case.from_json(json.loads(file.read_text(encoding="utf-8"))) for file in sorted(folder.glob("*.json"))
    ]
