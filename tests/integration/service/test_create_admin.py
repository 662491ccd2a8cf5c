"""`python -m service create-admin`: the way in before there is anybody."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys

import pytest

from headway.contract.views.identity import EVERYWHERE, TOKEN_PATTERN, Role
from service.adapters.postgres.database import Database
from service.usecases.nodes.join import digest_token
from service.usecases.ports.identity import Bearer


def create_admin(database_url: str, *argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")},
        "HEADWAY_DATABASE_URL": database_url,
        "HEADWAY_REDIS_URL": "redis://127.0.0.1:1/0",
        "HEADWAY_STORAGE_URL": "memory://",
    }
    command = [sys.executable, "-m", "service", "create-admin", *argv]
    return subprocess.run(command, env=env, input=stdin, capture_output=True, text=True, check=False)


def bearer_of(database_url: str, token: str) -> Bearer | None:
    async def silent(*_: object) -> None:
        """No wake-up is sent."""

    async def look() -> Bearer | None:
        database = Database(database_url, silent)
        async with database.begin() as tx:
            found = await tx.tokens.of_digest(digest_token(token))
        await database.close()
        return found

    return asyncio.run(look())


@pytest.mark.slow
def test_an_admin_is_made_with_a_token_that_is_printed_alone(database_url: str) -> None:
    made = create_admin(database_url, "alice@example.com")
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert re.fullmatch(TOKEN_PATTERN, token)
    found = bearer_of(database_url, token)
    assert found is not None
    assert (found.user_name, found.roles) == ("alice@example.com", {EVERYWHERE: Role.ADMIN})
    assert found.token.expires_at is None
    kept = create_admin(database_url, "alice@example.com", "--token-stdin", stdin=token)
    assert (kept.returncode, kept.stdout) == (0, ""), "one that works stays, and is not said again"
    anothers = create_admin(database_url, "bob", "--token-stdin", stdin=token)
    assert (anothers.returncode, "another user" in anothers.stderr) == (1, True)


@pytest.mark.slow
def test_what_is_no_name_or_no_token_is_refused(database_url: str) -> None:
    named = create_admin(database_url, "a b")
    assert (named.returncode, "is not a user name" in named.stderr) == (1, True)
    guessable = create_admin(database_url, "alice", "--token-stdin", stdin="")
    assert (guessable.returncode, "a token is hw_" in guessable.stderr) == (1, True)
