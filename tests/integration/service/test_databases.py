"""The databases of these tests: each test finds what the migrations leave, whatever the one before did."""

from __future__ import annotations

import asyncpg
import pytest

from tests.databases import Databases


def run(databases: Databases, url: str, *statements: str) -> list[str]:
    """Run statements, and return the names of the projects."""

    async def connected() -> list[str]:
        connection = await asyncpg.connect(url)
        try:
            for one in statements:
                await connection.execute(one)
            return [row["name"] for row in await connection.fetch("SELECT name FROM projects ORDER BY name")]
        finally:
            await connection.close()

    return databases.loop.run_until_complete(connected())


def test_a_database_serves_again_without_what_was_left(databases: Databases) -> None:
    added = "INSERT INTO projects (name, created_at) VALUES ('left', now())"
    removed = "UPDATE projects SET name = 'other' WHERE name = 'default'"
    with databases.borrow() as first:
        assert run(databases, first, added, removed) == ["left", "other"]
    with databases.borrow() as second:
        assert second == first
        assert run(databases, second) == ["default"]


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE one (n int)",
        "ALTER TABLE projects ADD COLUMN one int",
        "ALTER TABLE projects DROP CONSTRAINT pk_projects CASCADE",
        "ALTER TABLE projects ALTER COLUMN created_at DROP NOT NULL",
        "ALTER TABLE audit DISABLE TRIGGER append_only",
    ],
)
def test_a_database_of_another_schema_does_not_serve_again(databases: Databases, change: str) -> None:
    with databases.borrow() as first:
        run(databases, first, change)
    with databases.borrow() as second:
        assert second != first
        assert run(databases, second) == ["default"]
