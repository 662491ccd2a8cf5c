"""Tokens of nodes and tokens to join with, in real Postgres; users of a real Redis."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from headway.contract.agents import COMMAND_FIELD
from headway.contract.views.identity import JoinTokenView
from service.adapters.postgres.database import Database
from service.adapters.redis import connect, stream_of
from service.adapters.redis_acl import RedisAcl, SharedQueue
from service.domain.identity.credentials import UNDER_WAY, NodeTokens, TokenState
from service.domain.shared.errors import WrongToken
from service.usecases.nodes.credentials import authenticate, forget_gone, renew
from tests.conformance.conftest import NOW, node_of, store

REFUSED = (
    ("GET", "headway:node:n02:commands"),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("CONFIG", "GET", "*"),
    ("EVAL", "return 1", "0"),
    ("ACL", "LIST"),
    ("CLIENT", "LIST"),
    ("MONITOR",),
    ("PUBLISH", "headway:bells", "round|"),
    ("SUBSCRIBE", "headway:bells"),
    ("XREAD", "STREAMS", "headway:node:n02:commands", "0-0"),
    ("XDEL", "headway:node:n02:commands", "1-0"),
    ("XADD", "headway:node:n01:commands", "*", "command", "x"),
    ("XTRIM", "headway:node:n01:commands", "MAXLEN", "0"),
    ("DEL", "headway:node:n01:commands"),
    ("SHUTDOWN", "NOSAVE"),
)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def join_token(token_id: str = "k1", uses: int = 1, **fields: object) -> JoinTokenView:
    return JoinTokenView.model_validate(
        {
            "id": token_id,
            "name": "rack",
            "uses_left": uses,
            "created_by": "ops",
            "created_at": NOW,
            "expires_at": NOW + timedelta(days=1),
            **fields,
        }
    )


async def test_the_token_before_works_until_the_new_one_is_used(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n01", token_sha256=digest("one")))
        await renew(tx, "n01", presented_sha256=digest("one"), new_sha256=digest("lost"), now=NOW)
        # The answer was lost: what the agent has still gets it another.
        await renew(tx, "n01", presented_sha256=digest("one"), new_sha256=digest("two"), now=NOW)
    async with database.begin() as tx:
        await authenticate(tx, "n01", digest("one"), NOW)
        with pytest.raises(WrongToken):
            await authenticate(tx, "n01", digest("lost"), NOW)
        await authenticate(tx, "n01", digest("two"), NOW)
        assert await tx.credentials.of_node("n01") == NodeTokens(
            newest_sha256=digest("two"), previous_sha256=digest("one"), used_since=NOW
        )
        for void in ("one", "lost"):
            with pytest.raises(WrongToken):
                await authenticate(tx, "n01", digest(void), NOW)
            with pytest.raises(WrongToken):
                await renew(tx, "n01", presented_sha256=digest(void), new_sha256=digest("mine"), now=NOW)
        await authenticate(tx, "n01", digest("two"), NOW)


async def test_a_replaced_token_is_old_once_no_request_is_under_way_with_it(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("n01", token_sha256=digest("one")))
        await renew(tx, "n01", presented_sha256=digest("one"), new_sha256=digest("two"), now=NOW)
        await tx.credentials.token_used("n01", digest("two"), NOW)
        found = await tx.credentials.node_of(digest("one"))
        assert found is not None
        node_id, tokens = found
    assert node_id == "n01"
    assert tokens.state_of(digest("one"), NOW + UNDER_WAY / 2) is TokenState.REPLACED
    assert tokens.state_of(digest("one"), NOW + UNDER_WAY) is TokenState.OLD
    assert tokens.state_of(digest("any"), NOW) is TokenState.UNKNOWN


async def test_only_one_of_two_takes_the_last_use(database: Database) -> None:
    async with database.begin() as tx:
        await tx.credentials.add_join_token(join_token(), digest("secret"))

    async def take() -> bool:
        async with database.begin() as tx:
            return await tx.credentials.take_join_token("k1", NOW)

    assert sorted(await asyncio.gather(*(take() for _ in range(8)))) == [False] * 7 + [True]


async def test_a_use_counts_with_its_transaction(database: Database) -> None:
    async with database.begin() as tx:
        await tx.credentials.add_join_token(join_token(), digest("secret"))

    async def fail() -> None:
        async with database.begin() as tx:
            assert await tx.credentials.take_join_token("k1", NOW)
            raise WrongToken("something else was wrong")

    with pytest.raises(WrongToken):
        await fail()
    async with database.begin() as tx:
        found = await tx.credentials.find_join_token(digest("secret"))
        assert found is not None
        assert found.uses_left == 1


async def test_join_tokens_expire_and_go(database: Database) -> None:
    async with database.begin() as tx:
        await tx.credentials.add_join_token(join_token("k1"), digest("a"))
        assert not await tx.credentials.take_join_token("k1", NOW + timedelta(days=1))
        later = NOW + timedelta(days=9)
        made = join_token("k2", created_at=later, expires_at=later + timedelta(hours=1))
        await tx.credentials.add_join_token(made, digest("b"))
        assert await tx.credentials.join_tokens() == [made]
        assert await tx.credentials.remove_join_token("k2")
        assert not await tx.credentials.remove_join_token("k2")
        assert await tx.credentials.find_join_token(digest("b")) is None


@pytest_asyncio.fixture
async def service_redis(redis_url: str) -> AsyncIterator[Redis]:
    """The service's own connection."""
    client = connect(redis_url)
    for user in await client.acl_users():
        name = user.decode() if isinstance(user, bytes) else user
        if name != "default":
            await client.acl_deluser(name)
    yield client
    await client.aclose()


@pytest_asyncio.fixture
async def acl(service_redis: Redis, redis_url: str) -> RedisAcl:
    return RedisAcl(service_redis, redis_url)


async def test_a_node_reads_its_own_stream_and_nothing_else(acl: RedisAcl, service_redis: Redis) -> None:
    for node_id in ("n01", "n02"):
        await service_redis.xadd(stream_of(node_id), {COMMAND_FIELD: node_id})
    async with Redis.from_url(await acl.grant("n01")) as client:
        assert await client.ping()
        read: Any = await client.xread({stream_of("n01"): "0-0"}, block=1000)
        ((_, ((entry_id, fields),)),) = read
        assert fields == {COMMAND_FIELD.encode(): b"n01"}
        for command in REFUSED:
            with pytest.raises((NoPermissionError, ResponseError), match=r"(?i)permission|noperm"):
                await client.execute_command(*command)  # type: ignore[no-untyped-call]
        assert await client.xdel(stream_of("n01"), entry_id) == 1
    assert await service_redis.xlen(stream_of("n01")) == 0
    assert await service_redis.xlen(stream_of("n02")) == 1


async def test_a_new_password_voids_the_one_before(acl: RedisAcl) -> None:
    first, second = await acl.grant("n01"), await acl.grant("n01")
    async with Redis.from_url(second) as client:
        assert await client.ping()
    async with Redis.from_url(first) as client:
        with pytest.raises(AuthenticationError):
            await client.ping()


async def test_who_is_gone_has_no_access(acl: RedisAcl, service_redis: Redis, database: Database) -> None:
    urls = {node_id: await acl.grant(node_id) for node_id in ("n01", "n02")}
    assert sorted(await acl.granted()) == ["n01", "n02"]
    async with database.begin() as tx:
        await store(tx, node_of("n02"))
    of_another_cluster = RedisAcl(service_redis, "redis://redis:6379/9")
    await of_another_cluster.grant("n01")
    assert await forget_gone(database, acl) == 1
    assert await acl.granted() == ["n02"]
    assert await of_another_cluster.granted() == ["n01"]
    async with Redis.from_url(urls["n01"]) as client:
        with pytest.raises(AuthenticationError):
            await client.ping()
    assert await forget_gone(database, acl) == 0


async def test_a_redis_that_makes_no_users_is_told_of(
    acl: RedisAcl, service_redis: Redis, redis_url: str
) -> None:
    assert await acl.problem() is None
    await service_redis.execute_command(  # type: ignore[no-untyped-call]
        "ACL", "SETUSER", "plain", "on", ">secret", "~*", "&*", "+@all", "-@admin"
    )
    place = redis_url.rpartition("@")[2]
    client = connect(f"redis://plain:secret@{place}")
    try:
        problem = await RedisAcl(client, redis_url).problem()
    finally:
        await client.aclose()
    assert problem is not None
    assert "HEADWAY_REDIS_ACL=off" in problem


async def test_a_redis_that_is_away_fails_nobody_who_joins() -> None:
    client = connect("redis://:secret@127.0.0.1:1/0")
    try:
        url = await RedisAcl(client, "redis://:secret@redis:6379/3").grant("n01")
    finally:
        await client.aclose()
    assert url.startswith("redis://headway-3-n01:")
    assert url.endswith("@redis:6379/3")
    assert "secret" not in url


async def test_all_share_one_url_where_that_was_chosen() -> None:
    queue = SharedQueue("redis://:secret@redis:6379/0")
    assert await queue.grant("n01") == await queue.grant("n02") == "redis://:secret@redis:6379/0"
    assert await queue.granted() == []
