"""The cache of tokens in a process, and its lifetime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from headway.contract.views.identity import EVERYWHERE, Role
from service.domain.shared.errors import Unavailable, WrongToken
from service.usecases.identity.identify import (
    KNOWN_FOR_S,
    RENEWED_AFTER_S,
    UNKNOWN_FOR_S,
    USED_EVERY_S,
    Identities,
    principal_of,
)
from service.usecases.identity.tokens import new_token
from service.usecases.nodes.join import digest_token
from service.usecases.ports.identity import Bearer, TokenRecord
from service.usecases.ports.transactions import Transactions
from tests.waiting import until

NOW = datetime(2026, 11, 1, tzinfo=UTC)
TOKEN = new_token()


def token_of(**fields: Any) -> TokenRecord:
    values: dict[str, Any] = {
        "id": "t1",
        "name": "laptop",
        "user_id": "u1",
        "role": None,
        "created_by": "alice",
        "created_at": NOW,
        "expires_at": None,
        **fields,
    }
    return TokenRecord(**values)


ALICE = Bearer(token=token_of(), user_name="alice", roles={"red": Role.USER})


@dataclass
class Rows:
    """Tokens by digest, as a database that counts how often it is asked."""

    bearers: dict[str, Bearer] = field(default_factory=lambda: {digest_token(TOKEN): ALICE})
    asked: int = 0
    used_at: dict[str, datetime] = field(default_factory=dict)
    away: bool = False
    while_asked: Callable[[], None] = lambda: None
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def of_digests(self, tokens_sha256: Collection[str]) -> dict[str, Bearer]:
        self.asked += 1
        found = {one: self.bearers[one] for one in tokens_sha256 if one in self.bearers}
        self.while_asked()
        await self.may_answer.wait()
        return found

    async def used(self, at: Mapping[str, datetime], at_most_every_s: float) -> None:
        assert at_most_every_s == USED_EVERY_S
        self.used_at.update(at)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[_Tx]:
        if self.away:
            raise Unavailable("the database does not answer")
        yield _Tx(self)


@dataclass
class _Tx:
    tokens: Rows


@dataclass
class Clock:
    s: float = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.s)

    def monotonic_s(self) -> float:
        return self.s


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def identities_of(rows: Rows, clock: Clock, admin_token: str = "static") -> Identities:
    return Identities(cast("Transactions", rows), admin_token, clock.now, clock.monotonic_s)


@pytest.fixture
def identities(rows: Rows, clock: Clock) -> Identities:
    return identities_of(rows, clock)


async def test_the_services_own_token_needs_no_database(rows: Rows, identities: Identities) -> None:
    rows.away = True
    found = await identities.identify("static")
    assert (found.name, found.roles, found.token_id) == ("admin", {EVERYWHERE: Role.ADMIN}, None)


@pytest.mark.parametrize("token", ["", " ", "static"])
async def test_without_a_token_of_its_own_the_service_lets_nobody_in_by_it(
    rows: Rows, clock: Clock, token: str
) -> None:
    with pytest.raises(WrongToken):
        await identities_of(rows, clock, admin_token="").identify(token)
    assert rows.asked == 0


@pytest.mark.parametrize(
    "token",
    ["x", "hw_short", TOKEN + "a", TOKEN[3:], f"hw_{'é' * 43}", "a" * 100_000],
    ids=[
        "word",
        "short",
        "longer",
        "no prefix",
        "other letters",
        "very long",
    ],  # a token is another one every time
)
async def test_what_does_not_look_like_a_token_is_not_looked_up(
    rows: Rows, identities: Identities, token: str
) -> None:
    with pytest.raises(WrongToken, match="does not know it"):
        await identities.identify(token)
    assert rows.asked == 0


async def test_a_token_is_looked_up_once_in_a_few_seconds(
    rows: Rows, clock: Clock, identities: Identities
) -> None:
    for _ in range(3):
        assert (await identities.identify(TOKEN)).name == "alice"
    assert rows.asked == 1
    clock.s = KNOWN_FOR_S
    rows.bearers[digest_token(TOKEN)] = replace(ALICE, roles={"red": Role.VIEWER})
    assert (await identities.identify(TOKEN)).roles == {"red": Role.VIEWER}
    assert rows.asked == 2


async def test_a_token_in_use_is_looked_up_beside_its_requests(
    rows: Rows, clock: Clock, identities: Identities
) -> None:
    await identities.identify(TOKEN)
    rows.may_answer.clear()
    rows.bearers[digest_token(TOKEN)] = replace(ALICE, roles={"red": Role.VIEWER})
    clock.s = RENEWED_AFTER_S
    for _ in range(3):
        assert (await identities.identify(TOKEN)).roles == {"red": Role.USER}, "nobody waits for it"
    rows.may_answer.set()
    await asyncio.gather(*identities._renewals)
    assert rows.asked == 2
    clock.s = KNOWN_FOR_S
    assert (await identities.identify(TOKEN)).roles == {"red": Role.VIEWER}


async def test_a_token_in_use_that_is_gone_is_refused_once_that_is_known(
    rows: Rows, clock: Clock, identities: Identities
) -> None:
    await identities.identify(TOKEN)
    rows.bearers.clear()
    clock.s = RENEWED_AFTER_S
    await identities.identify(TOKEN)
    await asyncio.gather(*identities._renewals)
    with pytest.raises(WrongToken):
        await identities.identify(TOKEN)


async def test_a_database_that_is_away_is_told_to_who_is_not_remembered(
    rows: Rows, clock: Clock, identities: Identities
) -> None:
    await identities.identify(TOKEN)
    rows.away = True
    clock.s = RENEWED_AFTER_S
    assert (await identities.identify(TOKEN)).name == "alice"
    await asyncio.gather(*identities._renewals)
    clock.s = KNOWN_FOR_S
    with pytest.raises(Unavailable):
        await identities.identify(TOKEN)
    rows.away = False
    assert (await identities.identify(TOKEN)).name == "alice"


async def test_tokens_that_are_shown_at_once_are_looked_up_together(
    rows: Rows, identities: Identities
) -> None:
    tokens = [new_token() for _ in range(20)]
    rows.bearers.update({digest_token(one): ALICE for one in tokens})
    rows.may_answer.clear()
    first = asyncio.create_task(identities.identify(TOKEN))
    await until(lambda: rows.asked == 1)
    others = [asyncio.create_task(identities.identify(one)) for one in (*tokens, *tokens)]
    gone = asyncio.create_task(identities.identify(tokens[0]))
    await until(lambda: len(identities._look_ups._wanted) == len(tokens))
    gone.cancel()  # a client that went away takes nobody along
    rows.may_answer.set()
    found = await asyncio.gather(first, *others)
    assert {one.name for one in found} == {"alice"}
    assert rows.asked == 2


async def test_a_wrong_token_is_looked_up_once_a_second(
    rows: Rows, clock: Clock, identities: Identities
) -> None:
    wrong = new_token()
    for _ in range(3):
        with pytest.raises(WrongToken):
            await identities.identify(wrong)
    assert rows.asked == 1
    clock.s = UNKNOWN_FOR_S
    rows.bearers[digest_token(wrong)] = ALICE
    assert (await identities.identify(wrong)).name == "alice"


async def test_many_wrong_tokens_push_out_each_other_and_no_right_one(
    rows: Rows, identities: Identities
) -> None:
    await identities.identify(TOKEN)
    for _ in range(10_050):
        with pytest.raises(WrongToken):
            await identities.identify(new_token())
    assert len(identities._unknown) == 10_000
    asked = rows.asked
    await identities.identify(TOKEN)
    assert rows.asked == asked


async def test_what_was_changed_is_seen_at_once(rows: Rows, identities: Identities) -> None:
    await identities.identify(TOKEN)
    rows.bearers[digest_token(TOKEN)] = replace(ALICE, token=token_of(revoked_at=NOW))
    await identities.identify(TOKEN)
    identities.forget()
    with pytest.raises(WrongToken, match="revoked at 2026-11-01 00:00 UTC"):
        await identities.identify(TOKEN)


async def test_what_was_read_before_a_change_is_not_remembered_after_it(
    rows: Rows, identities: Identities
) -> None:
    def change() -> None:
        rows.bearers[digest_token(TOKEN)] = replace(ALICE, disabled_at=NOW)
        identities.forget()

    rows.while_asked = change
    await identities.identify(TOKEN)  # it was right when it was read
    rows.while_asked = lambda: None
    with pytest.raises(WrongToken, match="alice is disabled"):
        await identities.identify(TOKEN)


async def test_a_token_expires_while_it_is_remembered(
    rows: Rows, clock: Clock, identities: Identities
) -> None:
    rows.bearers[digest_token(TOKEN)] = replace(ALICE, token=token_of(expires_at=NOW + timedelta(seconds=2)))
    await identities.identify(TOKEN)
    clock.s = 2
    with pytest.raises(WrongToken, match="has expired"):
        await identities.identify(TOKEN)
    assert rows.asked == 1


async def test_uses_are_noted_beside_the_requests_and_once_a_minute(
    rows: Rows, clock: Clock, identities: Identities
) -> None:
    await identities.identify(TOKEN)
    await identities.identify(TOKEN)
    assert rows.used_at == {}
    await identities.write_uses()
    assert rows.used_at == {"t1": NOW}
    rows.bearers[digest_token(TOKEN)] = replace(ALICE, token=token_of(last_used_at=NOW))
    rows.used_at.clear()
    clock.s = USED_EVERY_S - 1
    await identities.identify(TOKEN)
    await identities.write_uses()
    assert rows.used_at == {}
    clock.s += KNOWN_FOR_S
    await identities.identify(TOKEN)
    await identities.write_uses()
    assert rows.used_at == {"t1": clock.now()}


async def test_uses_that_could_not_be_written_are_written_later(rows: Rows, identities: Identities) -> None:
    await identities.identify(TOKEN)
    rows.away = True
    with pytest.raises(Unavailable):
        await identities.write_uses()
    rows.away = False
    await identities.write_uses()
    assert rows.used_at == {"t1": NOW}


def test_a_robot_is_nobody_and_may_one_thing_in_one_place() -> None:
    robot = Bearer(token=token_of(user_id=None, role=Role.USER, project="red", name="alice"))
    found = principal_of(robot, NOW)
    assert (found.name, found.user_id, found.roles) == ("robot alice", None, {"red": Role.USER})


def test_a_token_is_narrower_than_its_user() -> None:
    bearer = Bearer(
        token=token_of(role=Role.VIEWER, project="red"),
        user_name="alice",
        roles={"red": Role.ADMIN, "blue": Role.USER},
    )
    found = principal_of(bearer, NOW)
    assert found.roles == {"red": Role.VIEWER}
    assert (found.token_role, found.token_project) == (Role.VIEWER, "red")
