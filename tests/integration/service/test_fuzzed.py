"""Saved inputs of the fuzzer, and known attacks, are handled without an error of the service or of a parser."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from benchmarks.fuzz import maker_of, prepare
from benchmarks.fuzzing.cases import Case, Surface
from benchmarks.fuzzing.checks import Problem, Target, check_archive, check_parser, check_request, load, save
from benchmarks.servers import TOKEN
from service.main import Service
from tests.integration.service.conftest import make_settings
from tests.integration.service.serving import serving

SAVED = load(Path(__file__).parents[2] / "fuzzed")
GENERATED = 150
"""Made-up cases beside the saved ones; `make fuzz` has the others."""
BY_SERVICE = frozenset({Surface.HTTP, Surface.REPORTS})


@pytest.fixture
def service_url(database_url: str, redis_url: str, tmp_path: Path) -> Iterator[str]:
    settings = make_settings(
        database_url, redis_url, f"file://{tmp_path}/storage", api_token=TOKEN, join_token=TOKEN
    )
    with serving(Service(settings).app()) as url:
        yield url


async def check(case: Case, target: Target) -> Problem | None:
    if case.surface in BY_SERVICE:
        return await check_request(case, target)
    return check_archive(case) if case.surface is Surface.ARCHIVES else check_parser(case)


@pytest.mark.slow
def test_saved_and_generated_cases_are_handled(service_url: str) -> None:
    target, description = prepare(urlsplit(service_url).port or 0)
    maker = maker_of(7, description)
    cases = [*SAVED, *(maker.next() for _ in range(GENERATED))]
    found = [asyncio.run(check(case, target)) for case in cases]
    assert [f"{one.case.method} {one.case.path}: {one.found}" for one in found if one is not None] == []
    assert httpx.get(f"{service_url}/livez").status_code == 200


def test_same_seed_gives_the_same_cases() -> None:
    description = {"paths": {}, "components": {"schemas": {}}}
    with pytest.raises(IndexError):
        [maker_of(1, description).next() for _ in range(50)]  # without an operation there is no request
    path = {"get": {"parameters": [{"in": "query", "name": "x", "schema": {"type": "integer"}}]}}
    description = {"paths": {"/x": path}, "components": {"schemas": {}}}
    one, other = maker_of(1, description), maker_of(1, description)
    assert [one.next() for _ in range(200)] == [other.next() for _ in range(200)]


def test_saved_case_is_loaded_as_it_was(tmp_path: Path) -> None:
    case = Case(Surface.HTTP, b"\x00\xff", "POST", "/x?y=%00", "viewer", {"accept": "é"})
    save(Problem(case, escape=False, found="500"), tmp_path, 1)
    assert load(tmp_path) == [case]


def test_parser_that_raises_something_else_is_a_problem() -> None:
    class Unreadable(bytes):
        """Bytes whose decoding fails as a parser with a fault would."""

        def decode(self, *_: object, **__: object) -> str:  # type: ignore[override]
            raise KeyError("fault")

    problem = check_parser(Case(Surface.RANK_MESSAGES, Unreadable(b"x")))
    assert problem is not None
    assert "KeyError" in problem.found


async def test_answer_of_500_and_a_missing_answer_are_problems() -> None:
    answers = [b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\nno", b""]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        target = Target(server.sockets[0].getsockname()[1], {}, "j1", "n1")
        case = Case(Surface.HTTP, b"", "GET", "/", "nobody")
        found = [await check_request(case, target) for _ in range(2)]
    assert [one is not None and one.found[:9] for one in found] == ["500: no", "no answer"]
