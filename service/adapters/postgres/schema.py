"""Bring the schema up to date, and say whether it is."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

_INSTALLED = Path(__file__).parents[2] / "migrations"
_CHECKOUT = Path(__file__).parents[3] / "migrations"


def alembic_config() -> Config:
    """Alembic's configuration: the scripts beside the package, or in the checkout."""
    config = Config()
    folder = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    config.set_main_option("script_location", str(folder))
    return config


async def migrate(engine: AsyncEngine) -> None:
    """Run every migration that is missing. Two at once wait for each other."""

    def upgrade(connection: Connection) -> None:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    async with engine.begin() as connection:
        await connection.run_sync(upgrade)


async def is_current(engine: AsyncEngine) -> bool:
    """Whether the database has the schema that this version needs."""

    def heads(connection: Connection) -> tuple[str, ...]:
        return MigrationContext.configure(connection).get_current_heads()

    async with engine.connect() as connection:
        found = await connection.run_sync(heads)
    return set(found) == set(ScriptDirectory.from_config(alembic_config()).get_heads())
