from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from headway.cli.context import Cli
from headway.cli.main import app
from headway.cli.waiting import wait
from headway.client.logs import LONGEST_LINE, lines
from headway.contract.agents import NodeState
from headway.contract.health import FaultCause, FaultGrade, QuarantineView
from headway.contract.values.markets import Market
from headway.contract.views.decisions import ClusterView, KindView
from headway.contract.views.identity import WhoAmI
from headway.contract.views.jobs import EventView, JobState, JobView, LogChunk, Page
from headway.contract.views.nodes import NodeView
from tests.unit.headway.stub import (
    NOW,
    StubService,
    event_view,
    job_view,
    node_view,
    ok,
    page,
    refusal,
    sse,
    stream,
)


def cluster_of(kinds: list[KindView]) -> ClusterView:
    return ClusterView(
        nodes={}, kinds=kinds, jobs={}, usd_per_h=0.0, policy="goodput", parameters={}, policies=[]
    )


@pytest.fixture
def service() -> StubService:
    return StubService()


def run(service: StubService, *arguments: str, **cli: object) -> Result:
    surroundings = Cli(connect=service.client, now=lambda: NOW, **cli)
    return CliRunner().invoke(app, arguments, obj=surroundings, catch_exceptions=False)


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    file = tmp_path / "job.yaml"
    file.write_text("name: digits\nrun: python digits.py\n")
    return str(file)


def test_submit_says_what_comes_next(service: StubService, job_file: str):
    service.on("POST /api/v1/jobs", ok(job_view(JobState.PENDING), 201))
    result = run(service, "submit", job_file, "--set", "elastic.max=3", "--set", "priority=9")
    assert result.exit_code == 0
    assert "headway logs -f digits" in result.stdout
    sent = service.body("POST /api/v1/jobs")
    assert (sent["elastic"], sent["priority"]) == ({"max": 3}, 9)


@pytest.mark.parametrize(
    ("fields", "warned"),
    [("elastic.min=9", True), ("elastic.min=8", False), ("resources.devices=[a100]", True)],
)
def test_submit_warns_of_a_job_that_cannot_start(
    service: StubService, job_file: str, fields: str, warned: bool
):
    kinds = [
        KindView(device_kind="cpu", market=market, slots=9, in_service=4, held=4, free=0, usd_per_slot_h=0.0)
        for market in Market
    ]
    service.on("POST /api/v1/jobs", ok(job_view(JobState.PENDING), 201))
    service.on("GET /api/v1/cluster", ok(cluster_of(kinds=kinds)))
    result = run(service, "submit", job_file, "--set", fields)
    assert result.exit_code == 0
    assert ("8 cpu. It waits until there are more" in result.stderr) is warned
    assert "headway logs -f digits" in result.stdout


def test_submit_warns_of_what_yaml_and_shells_change(service: StubService, job_file: str):
    Path(job_file).write_text("name: digits\nrun: python a.py --tag #42 --lr 1\nenv: {DATA: ~/data}\n")
    service.on("POST /api/v1/jobs", ok(job_view(JobState.PENDING), 201))
    result = run(service, "submit", job_file)
    assert result.exit_code == 0
    comment, home = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert "`#42 --lr 1`" in comment
    assert "env.DATA" in home


def test_submit_warns_of_data_that_gitignore_keeps_from_the_upload(service: StubService, tmp_path: Path):
    for name, content in {"digits.py": "", "data.csv": "1\n", ".gitignore": "*.csv\n"}.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "job.yaml").write_text("name: digits\nrun: python digits.py\nworkdir: .\n")
    service.on("POST /api/v1/bundles", ok({"digest": "sha256:" + "0" * 64, "size_bytes": 1, "files": 1}, 201))
    service.on("POST /api/v1/jobs", ok(job_view(JobState.PENDING), 201))
    result = run(service, "submit", str(tmp_path / "job.yaml"), "-o", "json")
    assert result.stderr.startswith("warning: 1 file (0.0 MiB)")
    assert JobView.model_validate_json(result.stdout).name == "digits"


def test_submit_of_a_wrong_file_sends_nothing(service: StubService, tmp_path: Path):
    (tmp_path / "job.yaml").write_text("name: digits\nrunn: x\n")
    result = run(service, "submit", str(tmp_path / "job.yaml"))
    assert result.exit_code == 1
    assert "job.yaml:2: runn: there is no such field; did you mean `run`?" in result.stderr
    assert service.requests == []


@pytest.mark.parametrize(
    ("state", "code"), [(JobState.SUCCEEDED, 0), (JobState.FAILED, 100), (JobState.CANCELLED, 103)]
)
def test_the_exit_code_of_wait_is_the_end_of_the_job(
    service: StubService, job_file: str, state: JobState, code: int
):
    service.on("POST /api/v1/jobs", ok(job_view(JobState.PENDING), 201))
    ended = job_view(state, message="the last word")
    service.on("GET /api/v1/jobs/j1", ok(job_view()), ok(job_view(size=4)), ok(ended))
    result = run(service, "submit", job_file, "--wait")
    assert result.exit_code == code
    assert "2/1-4" in result.stdout
    assert "4/1-4" in result.stdout
    assert f"digits {state}: the last word" in result.stdout


def test_wait_prints_a_line_only_when_something_changed(service: StubService, job_file: str):
    service.on("POST /api/v1/jobs", ok(job_view(JobState.PENDING), 201))
    service.on("GET /api/v1/jobs/j1", *[ok(job_view())] * 5, ok(job_view(JobState.SUCCEEDED)))
    assert run(service, "submit", job_file, "--wait").stdout.count("RUNNING") == 1


def test_interrupting_a_wait_leaves_the_job_alone_and_says_so(service: StubService, job_file: str):
    def interrupt() -> httpx.Response:
        raise KeyboardInterrupt

    service.on("POST /api/v1/jobs", ok(job_view(JobState.PENDING), 201))
    service.on("GET /api/v1/jobs/j1", interrupt)
    result = run(service, "submit", job_file, "--wait")
    assert result.exit_code == 130
    assert "digits continues" in result.stderr
    assert "headway cancel digits" in result.stderr
    assert service.sent("POST /api/v1/jobs/j1/cancel") == []


def test_wait_for_a_program_prints_the_last_view_alone(service: StubService, job_file: str):
    ended = job_view(JobState.SUCCEEDED)
    service.on("POST /api/v1/jobs", ok(job_view(JobState.PENDING), 201))
    service.on("GET /api/v1/jobs/j1", ok(job_view()), ok(ended))
    assert (
        JobView.model_validate_json(run(service, "submit", job_file, "--wait", "-o", "json").stdout) == ended
    )


def test_ps_shows_live_jobs_and_with_all_every_job(service: StubService):
    service.on("GET /api/v1/jobs", page(job_view(), job_view(name="gpt")))
    shown = run(service, "ps").stdout
    assert [line.split()[0] for line in shown.splitlines()] == ["NAME", "digits", "gpt"]
    assert service.requests[-1].url.params.get("live") == "true"
    run(service, "ps", "-a")
    assert "live" not in service.requests[-1].url.params


def test_ps_stops_at_its_limit(service: StubService):
    service.on("GET /api/v1/jobs", page(*[job_view()] * 3, next_cursor="more"))
    assert len(run(service, "ps", "--limit", "2").stdout.splitlines()) == 3
    assert len(service.requests) == 1


def test_ps_of_nothing_says_so(service: StubService):
    service.on("GET /api/v1/jobs", page())
    assert "No active jobs" in run(service, "ps").stdout


def test_ps_shows_the_jobs_of_an_owner(service: StubService):
    service.on("GET /api/v1/jobs", page(job_view(owner="robot ci")), page(job_view(owner="ada")))
    service.on(
        "GET /api/v1/whoami", ok(WhoAmI(name="ada", user_id="u1", token_id="t1", roles={}, expires_at=None))
    )
    run(service, "ps", "--owner", "robot ci")
    assert service.requests[-1].url.params["owner"] == "robot ci"
    run(service, "ps", "--mine")
    assert service.requests[-1].url.params["owner"] == "ada"
    service.on("GET /api/v1/jobs", page())
    assert "No active jobs of ada." in run(service, "ps", "--mine").stdout
    assert run(service, "ps", "--mine", "--owner", "ada").exit_code == 2


def test_ps_shows_no_speed_of_a_job_without_slots(service: StubService):
    running = job_view(size=1)
    running.progress.samples_per_s = 281.0
    paused = running.model_copy(update={"size": 0, "state": JobState.PAUSED})
    service.on("GET /api/v1/jobs", page(running, paused))
    assert [" 281 " in line for line in run(service, "ps").stdout.splitlines()] == [False, True, False]


def test_ps_and_describe_tell_when_a_waiting_job_is_expected_to_start(service: StubService):
    soon, later = NOW + timedelta(minutes=20), NOW + timedelta(days=3)
    waits = job_view(state=JobState.PENDING, starts_at=soon)
    service.on("GET /api/v1/jobs", page(waits, job_view(starts_at=later)))
    shown = run(service, "ps").stdout
    assert f"starts by ~{soon.astimezone():%H:%M}" in shown
    assert f"starts by ~{later.astimezone():%Y-%m-%d %H:%M}" in shown
    service.on("GET /api/v1/jobs/digits", ok(waits))
    service.on("GET /api/v1/jobs/j1/events", page())
    described = " ".join(run(service, "describe", "digits").stdout.split())
    assert f" starts by ~{soon.astimezone():%H:%M} " in described
    assert "starts starts" not in described


@pytest.mark.parametrize(
    ("largest", "allowed", "shown"),
    [(1, 0, ["0/1 slots, resize live", "2 errors of the script (none"]),
     (4, 3, ["0/1-4 slots, any sizes, resize live", "2 of 3 errors of the script"])],
)  # fmt: skip
def test_describe_names_a_choice_of_sizes_and_retries_only_where_the_job_has_one(
    service: StubService, largest: int, allowed: int, shown: list[str]
):
    job = job_view(state=JobState.FAILED, size=0, user_errors=2)
    elastic = job.spec.elastic.model_copy(update={"min": 1, "max": largest})
    retry = job.spec.retry.model_copy(update={"user_errors": allowed})
    spec = job.spec.model_copy(update={"elastic": elastic, "retry": retry})
    service.on("GET /api/v1/jobs/digits", ok(job.model_copy(update={"spec": spec})))
    service.on("GET /api/v1/jobs/j1/events", page())
    described = run(service, "describe", "digits").stdout
    assert [one for one in shown if one not in described] == []


@pytest.mark.parametrize("owner", [None, "bob"])
def test_ps_refuses_a_service_that_does_not_know_owners(service: StubService, owner: str | None):
    service.on("GET /api/v1/jobs", page(job_view(owner=owner)))
    result = run(service, "ps", "--owner", "ada")
    assert result.exit_code == 1
    assert "This service is too old to list the jobs of one owner." in result.stderr


def test_watching_ends_with_an_interrupt(service: StubService):
    def interrupt() -> httpx.Response:
        raise KeyboardInterrupt

    service.on("GET /api/v1/jobs", page(job_view()), interrupt)
    result = run(service, "ps", "--watch")
    assert result.exit_code == 0
    assert "digits" in result.stdout


def test_a_terminal_shows_a_live_bar(service: StubService):
    service.on("GET /api/v1/jobs/j1", ok(job_view()), ok(job_view(JobState.SUCCEEDED, message="[done]")))
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160, markup=False, highlight=False)
    with service.client() as client:
        assert wait(client, "j1", console).state is JobState.SUCCEEDED
    shown = out.getvalue()
    for expected in ("2/1-4 slots", "50% 500/1,000", "50/s, about 10s to go", "training"):
        assert expected in shown


@pytest.mark.parametrize(
    ("arguments", "route", "answer", "model"),
    [
        (["ps"], "GET /api/v1/jobs", Page[JobView](items=[job_view()]), Page[JobView]),
        (["describe", "j1"], "GET /api/v1/jobs/j1", job_view(), JobView),
        (
            ["events", "j1"],
            "GET /api/v1/jobs/j1/events",
            Page[EventView](items=[event_view(1)]),
            Page[EventView],
        ),
        (["nodes"], "GET /api/v1/nodes", Page[NodeView](items=[node_view()]), Page[NodeView]),
        (["pause", "j1"], "POST /api/v1/jobs/j1/pause", job_view(), JobView),
    ],
)
def test_json_is_the_contract(service: StubService, arguments, route, answer, model):
    service.on(route, ok(answer))
    result = run(service, *arguments, "-o", "json")
    assert model.model_validate_json(result.stdout) == answer


@pytest.mark.parametrize(
    ("arguments", "route", "body"),
    [
        (["resize", "digits", "4"], "POST /api/v1/jobs/digits/resize", {"slots": 4, "force": False}),
        (
            ["resize", "--force", "digits", "4"],
            "POST /api/v1/jobs/digits/resize",
            {"slots": 4, "force": True},
        ),
        (["resize", "digits", "auto"], "POST /api/v1/jobs/digits/resize", {"slots": None, "force": False}),
        (["priority", "digits", "80"], "PATCH /api/v1/jobs/digits", {"priority": 80}),
        (["cancel", "digits"], "POST /api/v1/jobs/digits/cancel", {"force": False}),
        (["cancel", "--force", "digits"], "POST /api/v1/jobs/digits/cancel", {"force": True}),
    ],
)
def test_steering_sends_what_was_asked(service: StubService, arguments, route, body):
    service.on(route, ok(job_view(), 202))
    assert run(service, *arguments).exit_code == 0
    assert service.body(route) == body


def test_a_job_that_runs_is_answered_with_its_size_and_not_with_its_last_change(service: StubService):
    grew = "grew from 1 to 2 slots in place: paused 0.10 s"
    service.on("POST /api/v1/jobs/digits/resize", ok(job_view(size=2, message=grew), 202))
    assert run(service, "resize", "digits", "1").stdout == (
        "digits is fixed at 1 slot. It is RUNNING on 2 slots\n"
    )
    waits = job_view(JobState.PENDING, size=0, message="waits for slots")
    service.on("POST /api/v1/jobs/digits/resize", ok(waits, 202))
    assert run(service, "resize", "digits", "auto").stdout.endswith("It is PENDING: waits for slots\n")


@pytest.mark.parametrize("size", ["²", "٣", "big", "0", "5000"])
def test_a_size_that_is_none_is_a_usage_error(service: StubService, size: str):
    result = run(service, "resize", "digits", size)
    assert result.exit_code == 2
    assert "neither a number from 1 to 4096 nor auto" in " ".join(result.stderr.replace("│", " ").split())


def test_a_refusal_is_one_message_and_exit_code_1(service: StubService):
    service.on("GET /api/v1/jobs/nope", refusal(404, "not_found", "there is no job nope"))
    result = run(service, "describe", "nope")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.strip() == "there is no job nope"


def test_describe_shows_the_last_events(service: StubService):
    service.on("GET /api/v1/jobs/digits", ok(job_view()))
    service.on("GET /api/v1/jobs/j1/events", page(*[event_view(n, f"event-{n}.") for n in range(1, 21)]))
    shown = run(service, "describe", "digits").stdout
    assert "event-20." in shown
    assert "event-12." not in shown


def test_logs_are_whole_lines_with_their_rank(service: StubService):
    pieces = [(0, "a0\nb"), (1, "a1\n"), (0, "0\nlast"), (1, "b1\n")]
    chunks = [
        LogChunk(cursor=f"{n}-1-0-0", at=NOW, generation=1, rank=rank, offset=0, text=text)
        for n, (rank, text) in enumerate(pieces)
    ]
    service.on("GET /api/v1/jobs/digits/logs", page(*chunks))
    assert run(service, "logs", "digits").stdout.splitlines() == [
        "[0] a0",
        "[1] a1",
        "[0] b0",
        "[1] b1",
        "[0] last",
    ]
    assert run(service, "logs", "--rank", "0", "digits").stdout.startswith("a0\n")


def test_followed_logs_and_events_end_with_the_job(service: StubService):
    chunk = LogChunk(cursor="1-1-0-0", at=NOW, generation=1, rank=0, offset=0, text="hello\n")
    service.on("GET /api/v1/jobs/digits/logs", stream(sse("log", chunk), sse("end")))
    service.on("GET /api/v1/jobs/digits/events", stream(sse("event", event_view(1)), sse("end")))
    assert run(service, "logs", "-f", "digits").stdout == "[0] hello\n"
    lines = run(service, "events", "-f", "digits", "-o", "json").stdout.splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == [1]


def test_drain_waits_until_the_node_is_empty(service: StubService):
    service.on("POST /api/v1/nodes/local-1/drain", ok(node_view(NodeState.DRAINED), 202))
    service.on("GET /api/v1/nodes", page(node_view(NodeState.DRAINED, (None,))))
    result = run(service, "drain", "--wait", "local-1")
    assert result.exit_code == 0
    assert "local-1 is DRAINED" in result.stdout


def test_a_slot_is_kept_from_jobs_and_given_back(service: StubService):
    node = node_view(NodeState.READY, ("digits", None))
    node.slots[1].quarantine = QuarantineView(
        slot=1, grade=FaultGrade.FATAL, cause=FaultCause.OPERATOR, message="noisy fan", since=NOW
    )
    service.on("POST /api/v1/nodes/local-1/slots/1/quarantine", ok(node, 202))
    result = run(service, "quarantine", "local-1", "1", "--why", "noisy fan")
    assert result.exit_code == 0
    assert "local-1 slot 1: in quarantine since" in result.output
    assert "fatal: noisy fan; until it is released" in result.output
    assert service.body("POST /api/v1/nodes/local-1/slots/1/quarantine") == {"why": "noisy fan"}
    service.on(
        "POST /api/v1/nodes/local-1/slots/1/release", ok(node_view(NodeState.READY, (None, None)), 202)
    )
    result = run(service, "release", "local-1", "1")
    assert (result.exit_code, result.output.strip()) == (0, "local-1 slot 1: takes jobs")
    assert run(service, "release", "local-1", "-1").exit_code == 2


def test_drain_does_not_wait_for_a_node_that_was_lost(service: StubService):
    service.on("POST /api/v1/nodes/local-1/drain", ok(node_view(NodeState.DRAINING), 202))
    service.on("GET /api/v1/nodes", page(node_view(NodeState.LOST)))
    assert run(service, "drain", "--wait", "local-1").exit_code == 1


def test_agent_becomes_the_agent_program_with_the_same_flags(service: StubService):
    became: list[list[str]] = []
    flags = ["--url", "http://s", "--token", "t", "--slots", "2", "--own-jobs", "--help"]
    run(service, "agent", *flags, become=became.append)
    assert became == [[sys.executable, "-P", "-m", "worker_agent", *flags]]


def test_version_is_shown_without_a_service(service: StubService):
    service.on("GET /version", refusal(500, "internal", "broken"))
    result = run(service, "version")
    assert result.exit_code == 0
    assert result.stdout.startswith("headway ")


def test_version_is_an_option_too(service: StubService):
    result = run(service, "--version")
    assert (result.exit_code, result.stdout.split()[0]) == (0, "headway")


def test_a_job_that_printed_nothing_says_so(service: StubService):
    service.on("GET /api/v1/jobs/digits/logs", page())
    result = run(service, "logs", "digits")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No output" in result.stderr


def test_why_a_job_failed_is_said_once(service: StubService, job_file: str):
    service.on("POST /api/v1/jobs", ok(job_view(JobState.PENDING), 201))
    service.on("GET /api/v1/jobs/j1", ok(job_view()), ok(job_view(JobState.FAILED, message="no data")))
    assert run(service, "submit", job_file, "--wait").stdout.count("no data") == 1


def test_no_verb_shows_the_help():
    assert "submit" in CliRunner().invoke(app, []).output


def test_logs_are_asked_for_by_rank_start_and_time(service: StubService):
    service.on("GET /api/v1/jobs/digits/logs", page())
    result = run(service, "logs", "digits", "--since", "10m", "--attempt", "2", "--tail", "5", "--rank", "1")
    assert dict(service.requests[0].url.params) == {"since": "10m", "attempt": "2", "tail": "5", "rank": "1"}
    assert "No output" in result.stderr
    run(service, "logs", "digits", "--generation", "3")
    assert dict(service.requests[1].url.params) == {"generation": "3"}


def test_logs_for_programs_are_one_page_written_as_it_comes(service: StubService):
    chunks = [
        LogChunk(cursor=f"{n}-1-0-0", at=NOW, generation=1, rank=0, offset=n, text=str(n)) for n in range(3)
    ]
    service.on("GET /api/v1/jobs/digits/logs", page(*chunks[:2], next_cursor="1-1-0-0"), page(chunks[2]))
    shown = Page[LogChunk].model_validate_json(run(service, "logs", "digits", "-o", "json").stdout)
    assert shown == Page[LogChunk](items=chunks)


def test_a_line_without_an_end_is_not_held_back_for_ever():
    def pieces() -> Iterator[LogChunk]:
        for number in range(40):
            yield LogChunk(
                cursor=f"{number}-1-0-0",
                at=NOW,
                generation=1,
                rank=0,
                offset=number << 18,
                text="x" * (1 << 18),
            )

    shown = list(lines(pieces(), prefixed=False))
    assert "".join(shown) == "x" * (40 << 18)
    assert max(map(len, shown)) <= LONGEST_LINE + (1 << 18)
