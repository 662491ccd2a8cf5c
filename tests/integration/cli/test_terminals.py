"""Terminals and locales that are not UTF-8: a command ends as anywhere else, with other characters at most."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.streams import json_for
from tests.integration.cli.loopback import headway, served
from tests.unit.headway.stub import StubService, job_view, ok, page

MESSAGE = "from 1 → 2 slots, naïve ✓ 训练 🙂"
ASCII = {"PYTHONIOENCODING": "ascii"}
POSIX = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
CP1252 = {"PYTHONIOENCODING": "cp1252"}


@pytest.fixture
def service() -> StubService:
    return StubService()


@pytest.fixture
def url(service: StubService) -> Iterator[str]:
    job = job_view(message=MESSAGE, present=MESSAGE)
    service.on("GET /api/v1/jobs", page(job))
    service.on("POST /api/v1/jobs", ok(job, status=201))
    with served(service) as found:
        yield found


@pytest.mark.parametrize("env", [ASCII, POSIX, CP1252])
def test_table_on_other_terminal_replaces_characters(url: str, env: dict[str, str]) -> None:
    done = headway("ps", url=url, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"from 1 ? 2 slots, na" in done.stdout


def test_json_on_other_terminal_loses_nothing(url: str) -> None:
    done = headway("ps", "-o", "json", url=url, env=ASCII)
    assert json.loads(done.stdout)["items"][0]["message"] == MESSAGE
    assert json.loads(json_for("cp1252", json.dumps(MESSAGE, ensure_ascii=False))) == MESSAGE


def test_error_on_other_terminal_is_a_message(url: str) -> None:
    done = headway("submit", "größe.yaml", url=url, env=CP1252)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_job_file_is_utf8_in_any_locale(url: str, service: StubService, tmp_path: Path, source: str) -> None:
    text = "name: words\nrun: \"echo 'naïve → 训练'\"\nelastic: {min: 1, max: 1}\n".encode()
    (tmp_path / "job.yaml").write_bytes(text)
    path = str(tmp_path / "job.yaml") if source == "file" else "-"
    done = headway("submit", path, url=url, env=POSIX, stdin=text)
    assert done.returncode == 0, done.stderr
    assert service.body("POST /api/v1/jobs")["run"] == "echo 'naïve → 训练'"


@pytest.mark.parametrize(("closed", "status"), [(">&-", 0), (">&- 2>&- <&-", 0), ("> /dev/full", 1)])
def test_output_that_nobody_takes_is_no_traceback(url: str, closed: str, status: int) -> None:
    done = headway("ps", url=url, redirected=closed)
    assert done.returncode == status
    assert b"Traceback" not in done.stderr
    assert (b"Cannot write" in done.stderr) is (status == 1)
