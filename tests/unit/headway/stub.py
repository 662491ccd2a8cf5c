"""A service made of canned answers, reached over httpx's own transport seam; contract objects to answer with."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
from pydantic import BaseModel

from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import EventView, JobProgress, JobState, JobView, Page, Problem, Reason
from headway.contract.views.nodes import NodeView, SlotView

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)

Answer = httpx.Response | httpx.TransportError


class FakeTimer:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def monotonic(self) -> float:
        return self.now_s


class StubService:
    """Answers each `METHOD /path` with what was scripted for it, in order; the last one again and again."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.timer = FakeTimer()
        self._answers: dict[str, deque[Callable[[], Answer]]] = {}

    def on(self, route: str, *answers: Callable[[], Answer]) -> None:
        self._answers[route] = deque(answers)

    def client(self, *, patience_s: float = 10.0) -> Client:
        transport = httpx.MockTransport(self._handle)
        return Client("http://stub", "secret", patience_s=patience_s, transport=transport, timer=self.timer)

    def sent(self, route: str) -> list[httpx.Request]:
        return [request for request in self.requests if _route(request) == route]

    def body(self, route: str) -> Any:
        return json.loads(self.sent(route)[-1].content)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answers = self._answers.get(_route(request))
        if answers is None:
            return refusal(404, "not_found", f"{_route(request)} is not scripted")()
        answer = (answers.popleft() if len(answers) > 1 else answers[0])()
        if isinstance(answer, httpx.TransportError):
            raise answer
        return answer


def _route(request: httpx.Request) -> str:
    return f"{request.method} {request.url.path}"


def ok(model: BaseModel | dict[str, Any], status: int = 200) -> Callable[[], Answer]:
    content = model.model_dump_json(by_alias=True) if isinstance(model, BaseModel) else json.dumps(model)
    return lambda: httpx.Response(status, content=content)


def page(*items: Any, next_cursor: str | None = None) -> Callable[[], Answer]:
    return ok(Page(items=list(items), next_cursor=next_cursor))


def refusal(status: int, code: str, detail: str, **headers: str) -> Callable[[], Answer]:
    problem = Problem(type="about:blank", title=code, status=status, code=code, detail=detail)
    return lambda: httpx.Response(status, content=problem.model_dump_json(), headers=headers)


def stream(*chunks: bytes) -> Callable[[], Answer]:
    return lambda: httpx.Response(200, content=iter(chunks), headers={"Content-Type": "text/event-stream"})


def broken(message: str = "connection refused") -> Callable[[], Answer]:
    return lambda: httpx.ConnectError(message)


def sse(event: str, model: BaseModel | None = None, identity: str | None = None) -> bytes:
    data = model.model_dump_json() if model is not None else "{}"
    head = f"id: {identity}\n" if identity is not None else ""
    return f"{head}event: {event}\ndata: {data}\n\n".encode()


def job_view(state: JobState = JobState.RUNNING, **changes: Any) -> JobView:
    spec = JobSpec.model_validate(
        {"name": "digits", "run": "python digits.py", "elastic": {"min": 1, "max": 4}}
    )
    fields: dict[str, Any] = {
        "id": "j1",
        "name": "digits",
        "project": "default",
        "state": state,
        "reason": Reason.PROGRESSING,
        "message": "training",
        "generation": 2,
        "attempt": 1,
        "size": 2,
        "allocation": {"local-1": [0, 1]},
        "pinned_size": None,
        "progress": JobProgress(epoch=1, samples=500, total_samples=1000, samples_per_s=50.0),
        "preemptions": 0,
        "infrastructure_failures": 0,
        "user_errors": 0,
        "submitted_at": datetime(2026, 11, 21, 11, 58, 0, tzinfo=UTC),
        "started_at": datetime(2026, 11, 21, 11, 58, 5, tzinfo=UTC),
        "finished_at": None,
        "spec": spec,
        "present": "",
    }
    return JobView(**(fields | changes))


def event_view(sequence: int, message: str = "something happened") -> EventView:
    return EventView(
        sequence=sequence,
        job_id="j1",
        at=NOW,
        kind="state",
        state=JobState.RUNNING,
        reason=None,
        message=message,
        generation=1,
    )


def node_view(
    state: NodeState = NodeState.READY, holders: tuple[str | None, ...] = ("digits", None)
) -> NodeView:
    slots = [
        SlotView(index=index, device_kind="cpu", job_id=holder and f"id-{holder}", job_name=holder)
        for index, holder in enumerate(holders)
    ]
    return NodeView(
        id="n1",
        name="local-1",
        state=state,
        message="",
        address="127.0.0.1",
        slots=slots,
        lease_remaining_s=12.0,
        joined_at=NOW,
        agent_version="0.1.0",
    )
