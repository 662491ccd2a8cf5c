"""The client as notebooks use it: what it takes for a job, where it finds its service, and how it waits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headway
from headway.client.client import Client
from headway.contract.views.jobs import JobState, LogChunk
from headway.errors import HeadwayError, LeftOutWarning
from headway.jobfile import JobFileError
from tests.unit.headway.stub import NOW, StubService, event_view, job_view, ok, page, sse, stream

JOBS = "POST /api/v1/jobs"


@pytest.fixture
def service() -> StubService:
    found = StubService()
    found.on(JOBS, ok(job_view(JobState.PENDING), 201))
    return found


@pytest.fixture
def client(service: StubService) -> Iterator[Client]:
    with service.client() as client:
        yield client


def test_a_job_is_a_spec_a_dictionary_or_a_file(service: StubService, client: Client, tmp_path: Path) -> None:
    fields = {"name": "digits", "run": "python digits.py", "batch": {"global": 64}}
    (tmp_path / "job.yaml").write_text(json.dumps(fields))
    for job in (
        fields,
        headway.JobSpec.model_validate(fields),
        tmp_path / "job.yaml",
        str(tmp_path / "job.yaml"),
    ):
        assert client.submit(job).id == "j1"
        assert service.body(JOBS) == fields


def test_wrong_fields_are_named_and_nothing_is_sent(service: StubService, client: Client) -> None:
    with pytest.raises(JobFileError, match=r"runn: there is no such field; did you mean `run`\?"):
        client.submit({"name": "digits", "runn": "x"})
    assert service.requests == []


def test_a_folder_is_sent_along_from_where_it_is_said(
    service: StubService, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    (tmp_path / "job.yaml").write_text("name: digits\nrun: python train.py\nworkdir: code\n")
    digests = []
    service.on("POST /api/v1/bundles", ok({"digest": "sha256:" + "0" * 64, "size_bytes": 1, "files": 1}, 201))
    for job, workdir in (
        (tmp_path / "job.yaml", None),
        ({"name": "digits", "run": "python train.py"}, tmp_path / "code"),
    ):
        client.submit(job, workdir=workdir)
        assert service.body(JOBS)["bundle"] == "sha256:" + "0" * 64
        digests.append(service.sent("POST /api/v1/bundles")[-1].content)
    assert digests[0] == digests[1]


def test_data_that_gitignore_keeps_from_the_upload_are_a_warning(
    service: StubService, client: Client, tmp_path: Path
) -> None:
    for name, content in {"train.py": "", "data.csv": "1\n", ".gitignore": "*.csv\n"}.items():
        (tmp_path / name).write_text(content)
    service.on("POST /api/v1/bundles", ok({"digest": "sha256:" + "0" * 64, "size_bytes": 1, "files": 1}, 201))
    with pytest.warns(LeftOutWarning, match=r"data\.csv.*`!/data\.csv` to \.headwayignore"):
        client.submit({"name": "digits", "run": "python train.py"}, workdir=tmp_path)
    assert service.body(JOBS)["bundle"] == "sha256:" + "0" * 64


def test_waiting_shows_progress_and_ends_with_the_job(service: StubService, client: Client) -> None:
    service.on("GET /api/v1/jobs/j1", ok(job_view()), ok(job_view(size=4)), ok(job_view(JobState.SUCCEEDED)))
    seen: list[tuple[JobState, int]] = []
    last = client.wait(job_view(), on_progress=lambda job: seen.append((job.state, job.size)), check=True)
    assert last.state is JobState.SUCCEEDED
    assert seen == [(JobState.RUNNING, 2), (JobState.RUNNING, 4), (JobState.SUCCEEDED, 2)]


def test_waiting_ends_with_its_time(service: StubService, client: Client) -> None:
    service.on("GET /api/v1/jobs/digits", ok(job_view(present="2 slots, fixed by you")))
    with pytest.raises(headway.WaitTimeoutError, match="2 slots, fixed by you"):
        client.wait("digits", timeout_s=5, every_s=1)
    assert service.timer.now_s == 5


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_a_job_that_does_not_succeed_is_an_error_where_that_is_asked_for(
    service: StubService, client: Client, state: JobState
) -> None:
    service.on("GET /api/v1/jobs/digits", ok(job_view(state, message="no data")))
    assert client.wait("digits").state is state
    with pytest.raises(headway.JobFailedError, match="no data"):
        client.wait("digits", check=True)


def test_logs_and_events_are_read_once_or_followed(service: StubService, client: Client) -> None:
    def chunk(rank: int, text: str) -> LogChunk:
        return LogChunk(cursor="1-1-0-0", at=NOW, generation=1, rank=rank, offset=0, text=text)

    service.on("GET /api/v1/jobs/j1/logs", page(chunk(0, "a\nb"), chunk(1, "c\n")))
    job = job_view()
    assert list(client.log_lines(job)) == ["[0] a", "[1] c", "[0] b"]
    assert list(client.log_lines(job, rank=0)) == ["a", "c", "b"]
    service.on("GET /api/v1/jobs/j1/logs", stream(sse("log", chunk(0, "x\n"), "1-1-0-0"), sse("end")))
    assert list(client.log_lines(job, follow=True, tail=1)) == ["[0] x"]
    service.on("GET /api/v1/jobs/j1/events", page(event_view(1)))
    assert [event.sequence for event in client.events(job)] == [1]
    service.on("GET /api/v1/jobs/j1/events", stream(sse("event", event_view(2), "2"), sse("end")))
    assert [event.sequence for event in client.events(job, follow=True)] == [2]


def test_without_a_url_the_service_is_that_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HEADWAY_URL", "HEADWAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    with pytest.raises(headway.HeadwayError, match="No service is configured"):
        headway.Client()
    (tmp_path / "client.json").write_text('{"url": "http://127.0.0.1:9", "token": "kept"}')
    with headway.Client() as client:
        assert client.url == "http://127.0.0.1:9"


def test_importing_the_package_imports_no_client() -> None:
    code = (
        "import sys, headway; heavy = {'httpx', 'pydantic', 'yaml', 'torch'} & set(sys.modules); "
        "assert not heavy, heavy; assert 'Client' in dir(headway); headway.Client; assert 'httpx' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_of_the_package_is_there() -> None:
    assert all(getattr(headway, name) is not None for name in headway.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = headway.nothing


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "\udcff", "a\nb"])
def test_a_name_that_cannot_be_one_is_refused_before_anything_is_sent(
    service: StubService, client: Client, name: str
) -> None:
    with pytest.raises(HeadwayError, match="is no name and no id"):
        client.job(name)
    with pytest.raises(HeadwayError, match="is no name and no id"):
        client.cancel(name)
    assert service.requests == []
