"""Tokens, people, their roles and projects, as rows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from headway.contract.spec import JobSpec
from headway.contract.views.identity import EVERYWHERE, ProjectQuota, Role
from headway.contract.views.jobs import JobState
from service.adapters.postgres.database import Database
from service.domain.shared.errors import InvalidField, NotFound
from service.domain.shared.retention import ExpiringRows, horizons
from service.usecases.identity.projects import delete_project
from service.usecases.ports.identity import Bearer, ProjectRecord, TokenRecord, TokensSeen, UserRecord
from service.usecases.ports.transactions import Transaction
from tests.conformance.conftest import NOW, job_of, make_projects, store

ALICE = UserRecord(id="u1", name="alice", created_at=NOW)
BOB = UserRecord(id="u2", name="bob", created_at=NOW)
EVERYBODYS = TokensSeen(user_id=None, token_id=None, projects=None)


def token_of(token_id: str = "t1", **fields: Any) -> TokenRecord:
    values: dict[str, Any] = {
        "id": token_id,
        "name": "laptop",
        "user_id": ALICE.id,
        "role": None,
        "created_by": "alice",
        "created_at": NOW,
        "expires_at": NOW + timedelta(days=30),
        **fields,
    }
    return TokenRecord(**values)


async def people(database: Database) -> None:
    async with database.begin() as tx:
        assert await tx.users.add(ALICE)
        assert await tx.users.add(BOB)
        await tx.users.put_role("u1", "red", Role.USER)
        await tx.users.put_role("u1", EVERYWHERE, Role.VIEWER)


async def bearer(database: Database, digest: str) -> Bearer | None:
    async with database.begin() as tx:
        return await tx.tokens.of_digest(digest)


async def ids(tx: Transaction, seen: TokensSeen) -> list[str]:
    page = await tx.tokens.page(seen, now=NOW, limit=10, cursor=None)
    return [one.id for one in page.items]


async def test_a_token_is_found_with_its_user_and_their_roles(database: Database) -> None:
    await people(database)
    token = token_of(role=Role.USER, project="red", session="browser")
    async with database.begin() as tx:
        assert await tx.tokens.add(token, "digest")
        assert await tx.tokens.lock("t1") == token
    assert await bearer(database, "digest") == Bearer(
        token=token, user_name="alice", roles={"red": Role.USER, EVERYWHERE: Role.VIEWER}
    )
    assert await bearer(database, "another") is None
    async with database.begin() as tx:
        await tx.tokens.add(token_of("t2", user_id="u2"), "second")
        found = await tx.tokens.of_digests({"digest", "second", "another"})
        assert {digest: one.user_name for digest, one in found.items()} == {
            "digest": "alice",
            "second": "bob",
        }
        assert await tx.tokens.of_digests([]) == {}


async def test_a_robots_token_has_no_user(database: Database) -> None:
    token = token_of(user_id=None, role=Role.USER, project="red")
    async with database.begin() as tx:
        await tx.tokens.add(token, "digest")
    assert await bearer(database, "digest") == Bearer(token=token)


async def test_a_token_that_nobody_got_is_made_again_and_the_first_ends(database: Database) -> None:
    await people(database)
    async with database.begin() as tx:
        assert await tx.tokens.add(token_of(), "first")
        assert await tx.tokens.add(token_of(), "second")
    assert await bearer(database, "first") is None
    assert await bearer(database, "second") is not None


@pytest.mark.parametrize(
    "other",
    [{"name": "x"}, {"user_id": "u2"}, {"role": Role.VIEWER}, {"project": "red"}, {"created_by": "x"}],
)
async def test_an_id_belongs_to_one_token(database: Database, other: dict[str, Any]) -> None:
    await people(database)
    async with database.begin() as tx:
        await tx.tokens.add(token_of(), "first")
        assert not await tx.tokens.add(token_of(**other), "second")
    assert await bearer(database, "first") is not None
    assert await bearer(database, "second") is None


async def test_a_token_in_use_is_not_made_again(database: Database) -> None:
    await people(database)
    async with database.begin() as tx:
        await tx.tokens.add(token_of("t1"), "first")
        await tx.tokens.add(token_of("t2"), "second")
        await tx.tokens.used({"t1": NOW}, 60)
        await tx.tokens.revoke("t2", NOW)
        assert not await tx.tokens.add(token_of("t1"), "third")
        assert not await tx.tokens.add(token_of("t2"), "fourth")


async def test_a_token_is_revoked_once(database: Database) -> None:
    await people(database)
    async with database.begin() as tx:
        await tx.tokens.add(token_of(), "digest")
        await tx.tokens.revoke("t1", NOW)
        await tx.tokens.revoke("t1", NOW + timedelta(hours=1))
        assert (await tx.tokens.lock("t1")).revoked_at == NOW
        with pytest.raises(NotFound, match="headway token ls"):
            await tx.tokens.lock("t2")


async def test_uses_are_noted_of_token_and_user_at_most_so_often(database: Database) -> None:
    await people(database)
    async with database.begin() as tx:
        await tx.tokens.add(token_of("t1"), "one")
        await tx.tokens.add(token_of("t2"), "two")
        await tx.tokens.add(token_of("t3", user_id=None, role=Role.USER), "three")
        await tx.tokens.used({"t1": NOW, "t2": NOW + timedelta(seconds=5), "t3": NOW, "gone": NOW}, 60)
        await tx.tokens.used({"t1": NOW + timedelta(seconds=59)}, 60)
        await tx.tokens.used({}, 60)
        assert (await tx.tokens.lock("t1")).last_used_at == NOW
        assert (await tx.tokens.lock("t3")).last_used_at == NOW
        assert (await tx.users.lock("alice")).last_seen_at == NOW + timedelta(seconds=5)
        await tx.tokens.used({"t1": NOW + timedelta(seconds=61)}, 60)
        assert (await tx.users.lock("alice")).last_seen_at == NOW + timedelta(seconds=61)


async def test_two_apis_that_note_the_same_uses_do_not_dead_lock(database: Database) -> None:
    await people(database)
    async with database.begin() as tx:
        for number in range(20):
            await tx.tokens.add(token_of(f"t{number}"), f"digest {number}")

    async def note(order: range) -> None:
        for turn in range(10):
            async with database.begin() as tx:
                await tx.tokens.used({f"t{number}": NOW + timedelta(seconds=turn) for number in order}, 0)

    await asyncio.gather(note(range(20)), note(range(19, -1, -1)), note(range(20)))


async def test_each_sees_their_own_tokens_and_robots_of_their_projects(database: Database) -> None:
    await people(database)
    async with database.begin() as tx:
        await tx.tokens.add(token_of("t1"), "1")
        await tx.tokens.add(token_of("t2", user_id="u2", created_at=NOW + timedelta(seconds=1)), "2")
        await tx.tokens.add(token_of("t3", user_id=None, role=Role.USER, project="red"), "3")
        await tx.tokens.add(token_of("t4", user_id=None, role=Role.USER), "4")
        await tx.tokens.add(token_of("t5", expires_at=NOW), "5")
        await tx.tokens.add(token_of("t6"), "6")
        await tx.tokens.revoke("t6", NOW)
        assert await ids(tx, EVERYBODYS) == ["t2", "t4", "t3", "t1"]
        assert await ids(tx, TokensSeen(user_id="u1", token_id=None, projects=frozenset())) == ["t1"]
        admin = TokensSeen(user_id="u1", token_id="t1", projects=frozenset({"red"}))
        assert await ids(tx, admin) == ["t3", "t1"]
        robot = TokensSeen(user_id=None, token_id="t4", projects=frozenset())
        assert await ids(tx, robot) == ["t4"]
        first = await tx.tokens.page(EVERYBODYS, now=NOW, limit=3, cursor=None)
        rest = await tx.tokens.page(EVERYBODYS, now=NOW, limit=3, cursor=first.next_cursor)
        assert [one.id for one in rest.items] == ["t1"]
        assert (rest.items[0].user, first.items[1].user) == ("alice", None)


async def test_people_have_names_of_their_own(database: Database) -> None:
    await people(database)
    async with database.begin() as tx:
        assert not await tx.users.add(replace(BOB, id="u3"))
        bob = replace(BOB, disabled_at=NOW, issuer="https://idp", subject="s", last_seen_at=NOW)
        await tx.users.save(bob)
        assert await tx.users.lock("bob") == bob
        with pytest.raises(NotFound, match="headway user add carol"):
            await tx.users.lock("carol")
        (found,) = (await tx.users.page(name="alice", limit=1, cursor=None)).items
        assert found.roles == {"*": Role.VIEWER, "red": Role.USER}
        first = await tx.users.page(name=None, limit=1, cursor=None)
        second = await tx.users.page(name=None, limit=1, cursor=first.next_cursor)
        assert [one.name for one in (*first.items, *second.items)] == ["alice", "bob"]
        assert second.next_cursor is None


async def test_roles_are_given_changed_and_taken(database: Database) -> None:
    await people(database)
    async with database.begin() as tx:
        await tx.users.put_role("u1", "red", Role.ADMIN)
        assert await tx.users.roles("u1") == {"red": Role.ADMIN, "*": Role.VIEWER}
        assert await tx.users.remove_role("u1", "red")
        assert not await tx.users.remove_role("u1", "red")
        assert await tx.users.roles("u1") == {"*": Role.VIEWER}


async def test_who_goes_takes_roles_and_tokens_along(database: Database) -> None:
    await people(database)
    async with database.begin() as tx:
        await tx.tokens.add(token_of(), "digest")
        await tx.users.delete("u1")
    assert await bearer(database, "digest") is None
    async with database.begin() as tx:
        assert await tx.users.roles("u1") == {}


async def test_admins_are_those_who_are_not_disabled(database: Database) -> None:
    await people(database)
    async with database.begin() as tx:
        await tx.users.put_role("u1", EVERYWHERE, Role.ADMIN)
        await tx.users.put_role("u2", EVERYWHERE, Role.ADMIN)
        await tx.users.put_role("u2", "red", Role.ADMIN)
        assert await tx.users.lock_admins() == {"u1", "u2"}
        await tx.users.save(replace(BOB, disabled_at=NOW))
        assert await tx.users.lock_admins() == {"u1"}


async def test_a_project_is_kept_with_its_quota(database: Database) -> None:
    quota = ProjectQuota(slots=4, max_slots=8, usd_per_month=100.0, weight=2.0)
    project = ProjectRecord(name="red", description="ünïcode", quota=quota, created_at=NOW)
    await make_projects(database, "red")
    async with database.begin() as tx:
        await tx.projects.save(project)
        assert await tx.projects.lock("red") == project
        assert await tx.projects.lock("blue") is None
        assert (await tx.projects.exists("red"), await tx.projects.exists("blue")) == (True, False)


async def test_projects_are_shown_with_members_and_what_they_hold(database: Database) -> None:
    await people(database)
    await make_projects(database, "blue", "red")
    async with database.begin() as tx:
        page = await tx.projects.page(None, NOW, limit=2, cursor=None)
        assert [one.name for one in page.items] == ["blue", "default"]
        rest = await tx.projects.page(None, NOW, limit=2, cursor=page.next_cursor)
        (red,) = rest.items
        assert (red.members, red.slots_held, red.usd_this_month) == ({"alice": Role.USER}, 0, 0.0)
        some = await tx.projects.page(frozenset({"red", "none"}), NOW, limit=9, cursor=None)
        assert [one.name for one in some.items] == ["red"]
        assert (await tx.projects.page(frozenset(), NOW, limit=9, cursor=None)).items == []


async def test_a_project_with_live_jobs_stays_and_another_goes_with_what_is_its(database: Database) -> None:
    await people(database)
    await make_projects(database, "red")
    spec = JobSpec(name="train", run="x", project="red")
    async with database.begin() as tx:
        await tx.tokens.add(token_of("t1", project="red"), "digest")
        await store(tx, job_of("j1", spec=spec))
        assert await tx.projects.delete("red") == ["job train"]
    async with database.begin() as tx:
        job = await tx.jobs.lock("j1")
        await tx.jobs.save(replace(job, state=JobState.CANCELLED, finished_at=NOW))
        assert await tx.projects.delete("red") == []
        assert await tx.projects.lock("red") is None
        assert await tx.users.roles("u1") == {EVERYWHERE: Role.VIEWER}
    assert await bearer(database, "digest") is None


async def test_no_job_is_stored_in_a_project_that_goes_meanwhile(database: Database) -> None:
    """Whoever is first wins: a project with a live job is never gone."""

    async def submit(number: int, project: str) -> bool:
        async with database.begin() as tx:
            await store(tx, job_of(f"j{number}", spec=JobSpec(name="job", run="x", project=project)))
        return True

    async def remove(project: str) -> bool:
        async with database.begin() as tx:
            await delete_project(tx, project)
        return True

    for number in range(10):
        project = f"p{number}"
        await make_projects(database, project)
        stored, gone = await asyncio.gather(submit(number, project), remove(project), return_exceptions=True)
        assert (stored is True) != (gone is True)
        assert stored is True or isinstance(stored, InvalidField)
    async with database.engine.connect() as connection:
        lost = "SELECT count(*) FROM jobs WHERE project NOT IN (SELECT name FROM projects)"
        assert (await connection.execute(text(lost))).scalar_one() == 0


async def test_tokens_that_work_no_more_go_after_a_month_and_sign_ins_after_an_hour(
    database: Database,
) -> None:
    await people(database)
    old, new = NOW - timedelta(days=31), NOW - timedelta(days=29)
    async with database.begin() as tx:
        for number, (expires_at, revoked_at) in enumerate(
            [(None, None), (None, old), (None, new), (old, None), (new, None), (NOW, old)]
        ):
            await tx.tokens.add(token_of(f"t{number}", expires_at=expires_at), f"digest {number}")
            if revoked_at is not None:
                await tx.tokens.revoke(f"t{number}", revoked_at)
    async with database.engine.begin() as connection:
        for hours in (0, 2):
            await connection.execute(
                text("INSERT INTO logins VALUES (:state, 'v', 'n', '/', :expires_at)"),
                {"state": str(hours), "expires_at": NOW - timedelta(hours=hours)},
            )
    kept = horizons(NOW, 90, None)
    async with database.begin() as tx:
        assert await tx.retention.delete_rows(ExpiringRows.TOKENS, kept.of(ExpiringRows.TOKENS)) == 3
        assert await tx.retention.delete_rows(ExpiringRows.LOGINS, kept.of(ExpiringRows.LOGINS)) == 1
        assert (
            await tx.retention.delete_rows(ExpiringRows.JOIN_TOKENS, kept.of(ExpiringRows.JOIN_TOKENS)) == 0
        )
    assert [await bearer(database, f"digest {number}") is None for number in range(6)] == [
        False,
        True,
        False,
        True,
        False,
        True,
    ]
