from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.client.client import ApiError, Client, HeadwayError, ServiceUnavailableError
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import FieldProblem, JobState, JobView, LogChunk, Problem
from headway.http import ServerEvent, _lines, parse_events
from tests.unit.headway.stub import (
    NOW,
    StubService,
    broken,
    event_view,
    job_view,
    node_view,
    ok,
    page,
    refusal,
    sse,
    stream,
)


def test_a_request_is_tried_again_while_the_service_is_away():
    service = StubService()
    service.on("GET /api/v1/jobs/digits", broken(), refusal(502, "gateway", "restarting"), ok(job_view()))
    assert service.client().job("digits") == job_view()
    assert service.timer.slept == [0.1, 0.2]


def test_retry_after_is_honoured():
    service = StubService()
    busy = refusal(503, "unavailable", "the database is down", **{"Retry-After": "3"})
    service.on("GET /api/v1/jobs/digits", busy, ok(job_view()))
    service.client().job("digits")
    (slept_s,) = service.timer.slept
    assert 3.0 <= slept_s <= 3.75, "not all at once, and not before"


def test_patience_ends():
    service = StubService()
    service.on("GET /api/v1/jobs/digits", broken("connection refused"))
    with pytest.raises(ServiceUnavailableError, match=r"http://stub does not answer \(connection refused\)"):
        service.client(patience_s=10).job("digits")
    assert 5 <= service.timer.now_s <= 10


def test_a_retry_after_beyond_patience_is_not_waited_for():
    service = StubService()
    service.on("GET /api/v1/jobs/digits", refusal(503, "unavailable", "down", **{"Retry-After": "60"}))
    with pytest.raises(ServiceUnavailableError, match="down"):
        service.client(patience_s=10).job("digits")
    assert service.timer.slept == []


def test_a_refusal_is_not_tried_again():
    service = StubService()
    service.on("GET /api/v1/jobs/digits", refusal(404, "not_found", "there is no job digits"))
    with pytest.raises(ApiError, match="there is no job digits") as caught:
        service.client().job("digits")
    assert caught.value.problem.code == "not_found"
    assert len(service.requests) == 1


def test_a_refusal_names_the_wrong_fields():
    problem = Problem(type="about:blank", title="Invalid", status=422, code="invalid", detail="Wrong fields.")
    problem.errors.append(FieldProblem(field="elastic.max", message="must be at least 1"))
    service = StubService()
    service.on("GET /api/v1/jobs/digits", ok(problem, 422))
    with pytest.raises(ApiError, match=r"(?s)Wrong fields\..*elastic\.max: must be at least 1"):
        service.client().job("digits")


def test_an_error_without_a_problem_is_described_by_its_status():
    service = StubService()
    service.on("GET /api/v1/jobs/digits", lambda: httpx.Response(418, text="<html>teapot</html>"))
    with pytest.raises(ApiError, match=r"answered 418 .*teapot"):
        service.client().job("digits")


def test_an_address_that_is_none_is_explained():
    with pytest.raises(HeadwayError, match="HEADWAY_URL"):
        Client("stub:8123", None).job("digits")


def test_the_token_is_sent():
    service = StubService()
    service.on("GET /api/v1/jobs/digits", ok(job_view()))
    service.client().job("digits")
    assert service.requests[0].headers["Authorization"] == "Bearer secret"


def test_a_retried_submit_carries_one_idempotency_key():
    service = StubService()
    service.on("POST /api/v1/jobs", broken(), ok(job_view(), 201))
    client = service.client()
    client.submit(JobSpec(name="digits", run="true"))
    client.submit(JobSpec(name="digits", run="true"))
    first, retried, second = (request.headers["Idempotency-Key"] for request in service.requests)
    assert first == retried != second
    assert service.body("POST /api/v1/jobs") == {"name": "digits", "run": "true"}


def test_names_are_quoted_in_paths():
    service = StubService()
    with pytest.raises(ApiError):
        service.client().job("a..b?c")
    assert service.requests[0].url.raw_path == b"/api/v1/jobs/a..b%3Fc"


@pytest.mark.parametrize("name", ["a/../b", "..", "", "a\nb"])
def test_name_that_would_lead_elsewhere_is_refused_before_any_request(name: str):
    service = StubService()
    with pytest.raises(HeadwayError, match="is no name and no id"):
        service.client().job(name)
    assert service.requests == []


def test_pages_are_fetched_as_they_are_consumed():
    service = StubService()
    service.on("GET /api/v1/jobs", page(job_view(id="a"), next_cursor="c1"), page(job_view(id="b")))
    jobs = service.client().jobs(live=True, state=JobState.RUNNING)
    assert next(jobs).id == "a"
    assert len(service.requests) == 1
    assert [job.id for job in jobs] == ["b"]
    assert dict(service.requests[1].url.params) == {"state": "RUNNING", "live": "true", "cursor": "c1"}


def test_following_goes_on_where_the_stream_broke():
    service = StubService()
    service.on(
        "GET /api/v1/jobs/digits/events",
        stream(sse("event", event_view(1)), sse("event", event_view(2)), b"data: {half"),
        broken(),
        stream(b": still here\n\n", sse("event", event_view(3)), sse("end")),
    )
    assert [event.sequence for event in service.client().follow_events("digits")] == [1, 2, 3]
    assert [request.headers.get("Last-Event-ID") for request in service.requests] == ["0", "2", "2"]
    assert service.requests[-1].url.params["after"] == "2"


def test_a_quiet_stream_is_opened_again_without_losing_patience():
    service = StubService()

    def quiet() -> httpx.TransportError:
        service.timer.now_s += 30
        return httpx.ReadTimeout("quiet")

    service.on("GET /api/v1/jobs/digits/events", quiet, quiet, quiet, stream(sse("end")))
    assert list(service.client(patience_s=1).follow_events("digits")) == []


def test_following_ends_when_patience_does():
    service = StubService()
    service.on("GET /api/v1/jobs/digits/events", stream(sse("event", event_view(1))), broken())
    events = service.client(patience_s=5).follow_events("digits")
    assert next(events).sequence == 1
    with pytest.raises(ServiceUnavailableError):
        next(events)


def test_following_a_job_that_is_not_there_is_refused_at_once():
    service = StubService()
    service.on("GET /api/v1/jobs/digits/logs", refusal(404, "not_found", "there is no job digits"))
    with pytest.raises(ApiError, match="there is no job digits"):
        list(service.client().follow_logs("digits"))


def test_the_tail_of_a_log_is_asked_for_once():
    service = StubService()
    chunk = LogChunk(cursor="1-1-0-0", at=NOW, generation=1, rank=0, offset=0, text="a\u2028b\n")
    service.on("GET /api/v1/jobs/digits/logs", stream(sse("log", chunk)), stream(sse("end")))
    assert list(service.client().follow_logs("digits", rank=0, tail=5)) == [chunk]
    assert dict(service.requests[0].url.params) == {"rank": "0", "tail": "5"}
    assert dict(service.requests[1].url.params) == {"rank": "0", "after": "1-1-0-0"}


def test_waiting_ends_with_the_job_and_survives_an_outage():
    service = StubService()
    done = job_view(JobState.SUCCEEDED)
    service.on("GET /api/v1/jobs/digits", ok(job_view()), *[broken()] * 12, ok(done))
    seen = list(service.client(patience_s=1).watch("digits"))
    assert [job.state for job in seen] == [JobState.RUNNING, JobState.SUCCEEDED]


def test_waiting_gives_up_after_a_long_outage():
    service = StubService()
    service.on("GET /api/v1/jobs/digits", ok(job_view()), broken())
    seen: list[JobView] = []
    with pytest.raises(ServiceUnavailableError):
        seen.extend(service.client(patience_s=1).watch("digits", outage_s=60))
    assert 60 <= service.timer.now_s < 70


def test_nodes_are_addressed_by_name():
    service = StubService()
    service.on("POST /api/v1/nodes/local-1/drain", ok(node_view(), 202))
    assert service.client().drain("local-1").name == "local-1"


@given(
    st.lists(
        st.builds(
            ServerEvent,
            event=st.sampled_from(["event", "log"]),
            data=st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])),
        )
    ),
    st.lists(st.integers(1, 40)),
)
def test_events_survive_any_split_of_the_bytes(events: list[ServerEvent], sizes: list[int]):
    sent = "".join(f": hi\r\nid: 1-0\nevent: {e.event}\ndata: {e.data}\n\n" for e in events).encode()
    chunks = []
    for size in sizes:
        chunks.append(sent[:size])
        sent = sent[size:]
    assert list(parse_events(_lines([*chunks, sent]))) == events


def test_data_of_several_lines_is_joined():
    lines = ["data: a", "data:b", "", "event: end", ""]
    assert list(parse_events(lines)) == [ServerEvent("message", "a\nb"), ServerEvent("end", "")]


def test_a_refusal_names_its_fields_unless_it_has_said_the_same_already():
    said = [FieldProblem(field="run", message="no such file"), FieldProblem(field="env", message="too long")]
    problem = Problem(
        type="about:blank",
        title="Unprocessable",
        status=422,
        code="invalid",
        detail="no such file",
        errors=said,
    )
    assert ApiError(problem).what == "no such file\n  env: too long"
