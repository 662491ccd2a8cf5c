"""Ten thousand bad requests, made from the API's description: none gets in, none is answered with an error of the service."""

from __future__ import annotations

import json
import random
import string
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import text

from headway.contract.views.identity import Role
from tests.integration.service.conftest import Harness
from tests.integration.service.roles import OPEN, Operation, Somebody, path_of, prepare

REQUESTS = 10_000
ODD = [
    None,
    True,
    -1,
    0,
    2**63,
    1e308,
    "",
    " ",
    "\x00",
    "a" * 5000,
    "../../etc/passwd",
    "'; DROP TABLE jobs; --",
    [],
    [[]],
    {},
]
ODD_WORDS = [
    "..",
    "%2e%2e",
    "*",
    "red*",
    "red/blue",
    "\x00",
    "a" * 300,
    "' OR 1=1",
    "${jndi:ldap://x}",
    "-1",
    "_",
    "é",
]
WATCHED = ("jobs", "nodes", "budgets", "projects", "users", "members", "tokens", "join_tokens", "secrets", "commands",
           "allocations", "slot_grants", "simulations", "quarantines")  # fmt: skip


@dataclass(frozen=True)
class Bad:
    """One request, and what is wrong with it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    what: str


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


Ask = Callable[[Bad], Awaitable[Answer]]


def asks(app: Any) -> Ask:
    """Without a client, which would refuse to send much of this, and takes longer than the service does."""

    async def ask(bad: Bad) -> Answer:
        sent: list[dict[str, Any]] = []
        waiting = [{"type": "http.request", "body": bad.body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return waiting.pop() if waiting else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        path, _, query = bad.path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": bad.method,
            "path": path, "raw_path": quote(path).encode(), "query_string": query.encode("latin-1", "replace"),
            "root_path": "", "client": ("192.0.2.7", 40000), "server": ("headway", 80),
            "headers": [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in bad.headers.items()],
        }  # fmt: skip
        await app(scope, receive, send)
        start = sent[0]
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]}
        return Answer(start["status"], headers, b"".join(one.get("body", b"") for one in sent[1:]))

    return ask


class Maker:
    """Makes bad requests, the same ones from the same seed."""

    def __init__(
        self, seed: int, operations: list[Operation], unknown: list[Somebody], weak: str, node_id: str
    ) -> None:
        self._random = random.Random(seed)
        self._all = [one for one in operations if one.id not in OPEN]
        self._changing = [one for one in self._all if one.role not in {None, "any", Role.VIEWER}]
        self._unknown = [one.token for one in unknown]
        self._weak = weak
        self._node_id = node_id

    def next(self) -> Bad:
        kind = self._random.choice(
            [self._stranger, self._stranger, self._weakling, self._nonsense, self._lost]
        )
        return kind()

    def _stranger(self) -> Bad:
        """Return a request without a token that works, for an operation of any kind."""
        operation = self._random.choice(self._all)
        token = self._random.choice([*self._unknown, self._forged(), self._forged()])
        if operation.role is None and token == "join-token":
            token = None
        bad = self._request(operation, token)
        return self._spoilt(bad) if self._random.random() < 0.5 else bad

    def _weakling(self) -> Bad:
        """A viewer wants to change something."""
        bad = self._request(self._random.choice(self._changing), self._weak)
        return self._spoilt(bad) if self._random.random() < 0.3 else bad

    def _nonsense(self) -> Bad:
        """A stranger sends what no client would."""
        operation = self._random.choice(self._all)
        return self._spoilt(self._spoilt(self._request(operation, self._forged())))

    def _lost(self) -> Bad:
        """A viewer asks for paths that are not there, or by methods that are not."""
        path = path_of(self._random.choice(self._all), self._node_id)
        words = path.split("/")
        words[self._random.randrange(1, len(words))] = self._random.choice(ODD_WORDS)
        method = self._random.choice(["PUT", "POST", "DELETE", "PATCH", "TRACE", "PROPFIND", "x"])
        return Bad(method, "/".join(words), self._headers(self._weak), b"{}", "lost")

    def _request(self, operation: Operation, token: str | None) -> Bad:
        body = b"" if operation.body is None else json.dumps(operation.body).encode()
        path = path_of(operation, self._node_id)
        return Bad(operation.method, path, self._headers(token), body, operation.id)

    def _headers(self, token: str | None) -> dict[str, str]:
        usual = {"host": "headway", "content-type": "application/json"}
        if token is None:
            return usual
        scheme = self._random.choice(["Bearer", "bearer", "Bearer", "Basic", "Token", "Bearer Bearer"])
        return {**usual, "authorization": f"{scheme} {token}"}

    def _forged(self) -> str:
        letters = string.ascii_letters + string.digits + "-_./ \x00é"
        return "hw_" * self._random.randrange(2) + "".join(
            self._random.choices(letters, k=self._random.randrange(60))
        )

    def _spoilt(self, bad: Bad) -> Bad:
        return self._random.choice([self._odd_body, self._odd_query, self._odd_header, self._broken_body])(
            bad
        )

    def _odd_body(self, bad: Bad) -> Bad:
        try:
            body = json.loads(bad.body or b"{}")
        except ValueError:
            return bad
        if isinstance(body, dict):
            name = self._random.choice([*body, "more"])
            body[name] = self._random.choice(ODD)
        return replace(bad, body=json.dumps(body).encode())

    def _broken_body(self, bad: Bad) -> Bad:
        cut = self._random.randrange(len(bad.body) + 1)
        return replace(bad, body=bad.body[:cut] + self._random.randbytes(self._random.randrange(1, 40)))

    def _odd_query(self, bad: Bad) -> Bad:
        name = self._random.choice(
            ["limit", "cursor", "after", "project", "state", "tail", "rank", "offset", "x"]
        )
        return replace(bad, path=f"{bad.path}?{name}={quote(str(self._random.choice(ODD)))}")

    def _odd_header(self, bad: Bad) -> Bad:
        name = self._random.choice(["content-type", "if-match", "idempotency-key", "last-event-id", "x-request-id", "accept",
                                    "cookie", "x-forwarded-for", "content-length", "origin"])  # fmt: skip
        return replace(bad, headers={**bad.headers, name: self._random.choice(ODD_WORDS)})


async def everything(harness: Harness) -> dict[str, Any]:
    """Return all rows, without the times at which tokens were last used."""
    async with harness.service.database.engine.begin() as connection:
        return {
            table: (
                await connection.execute(
                    text(
                        f"SELECT md5(string_agg((to_jsonb(t) - 'last_used_at' - 'last_seen_at')::text, '' ORDER BY t::text)) "
                        f"FROM {table} AS t"
                    )
                )
            ).scalar()
            for table in WATCHED
        }


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
async def test_ten_thousand_bad_requests_change_nothing(harness: Harness, seed: int) -> None:
    cast, operations, agent = await prepare(harness)
    (weak,) = (one.token for one in cast.known if one.role is Role.VIEWER and one.project == "red")
    assert weak is not None
    maker = Maker(seed, operations, cast.unknown[:4], weak, agent.joined.node_id)
    ask = asks(harness.client._transport.app)  # type: ignore[attr-defined]
    before = await everything(harness)
    statuses: Counter[int] = Counter()
    for _ in range(REQUESTS):
        bad = maker.next()
        answer = await ask(bad)
        statuses[answer.status] += 1
        assert 400 <= answer.status < 500, f"{bad}: {answer}"
        if bad.method != "HEAD":
            problem = json.loads(answer.body)
            assert answer.headers["content-type"] == "application/problem+json", bad
            assert problem["status"] == answer.status, bad
            assert "Traceback" not in problem["detail"], bad
    assert await everything(harness) == before
    assert statuses[401] > REQUESTS / 4
    assert statuses[403] > REQUESTS / 20
