"""Backups: one consistent snapshot of the database as a folder, with one compressed file for each table.

- `manifest.json`: the contents; written last, so a folder without it is not a backup.
- `TABLE.copy.gz`: the table's rows in PostgreSQL's text format of COPY.

A backup needs no program of PostgreSQL. A newer version of Headway can restore it: it loads the rows into the
schema of their revision and then migrates that schema.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, Table, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from service.adapters.postgres.engine.schema import current_revision, head_revision, migrate
from service.adapters.postgres.tables.upkeep import database_state
from service.domain.shared.errors import InvalidField, Unavailable

FORMAT = 1
MANIFEST = "manifest.json"
_OWN_TABLES = frozenset({"alembic_version", database_state.name})
"""Tables that describe this database rather than its contents. Backups leave them out."""
NUMBERS_LEFT_OUT = 1_000_000
"""Gap between the row numbers of the backup and those assigned after a restore. The original database may
have used numbers since the backup, and readers of events must not see a number twice.
"""
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedTable:
    """One table of a backup."""

    name: str
    columns: tuple[str, ...]
    rows: int
    sha256: str
    """SHA-256 digest of the compressed file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Contents of a backup. A table comes after the tables that it refers to."""

    at: str
    """Time of the backup, by the database's clock."""
    revision: str
    version: str
    tables: tuple[DumpedTable, ...]

    @property
    def rows(self) -> int:
        """Return the number of rows in all tables."""
        return sum(table.rows for table in self.tables)


async def dump(engine: AsyncEngine, folder: Path) -> Manifest:
    """Write a consistent snapshot of the database to a new folder. The service may keep running.

    Raises:
        InvalidField: the folder is not empty.
    """
    _make_new(folder)
    revision = await current_revision(engine)
    async with _without_time_limit(engine) as own, own.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        at: datetime = (await connection.execute(select(func.now()))).scalar_one()
        tables = [
            await _dump_table(connection, table, folder)
            for table in await connection.run_sync(_reflected)
            if table.name not in _OWN_TABLES
        ]
    manifest = Manifest(
        at=at.isoformat(), revision=revision, version=version("headway"), tables=tuple(tables)
    )
    written = {"format": FORMAT, **asdict(manifest)}
    (folder / MANIFEST).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a backup and check the digest of every file.

    Raises:
        InvalidField: the folder is not a backup, is damaged, or is from a newer version.
    """
    try:
        fields = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if fields["format"] != FORMAT:
            raise InvalidField(
                "folder", f"{folder} was written by a newer version; restore it with that one."
            )
        tables = tuple(DumpedTable(**{**one, "columns": tuple(one["columns"])}) for one in fields["tables"])
        manifest = Manifest(
            at=fields["at"], revision=fields["revision"], version=fields["version"], tables=tables
        )
        datetime.fromisoformat(manifest.at)
    except FileNotFoundError:
        raise InvalidField("folder", f"{folder} is not a backup: it has no {MANIFEST}.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidField("folder", f"{folder / MANIFEST} is damaged: {error}.") from error
    if manifest.revision > head_revision():
        raise InvalidField(
            "folder",
            f"the backup is of revision {manifest.revision}, and this version knows {head_revision()}; restore it with "
            f"Headway {manifest.version} or newer.",
        )
    for table in manifest.tables:
        file = _file(folder, table.name)
        if not file.is_file() or _digest(file) != table.sha256:
            raise InvalidField("folder", f"{file} is missing or damaged; take another backup.")
    return manifest


async def load(engine: AsyncEngine, folder: Path, manifest: Manifest) -> None:
    """Fill an empty database from a backup and migrate it to this version's schema.

    The database cannot be used yet: see `service.usecases.upkeep.restore`.

    Raises:
        InvalidField: the database is not empty.
        Unavailable: the migration failed.
    """
    if await current_revision(engine):
        raise InvalidField(
            "HEADWAY_DATABASE_URL",
            "names a database that is in use; restore into a new, empty one (`createdb`), and keep this one until you "
            "have seen the other work.",
        )
    await migrate(engine, manifest.revision)
    async with _without_time_limit(engine) as own, own.begin() as connection:
        names = ", ".join(table.name for table in manifest.tables)
        await connection.execute(text(f"TRUNCATE {names} CASCADE"))  # rows that migrations inserted
        for table in manifest.tables:
            await _load_table(connection, table, folder)
        await connection.run_sync(_skip_numbers)
        await connection.execute(
            database_state.update().values(backed_up_at=datetime.fromisoformat(manifest.at), restored_at=None)
        )
    await migrate(engine)


@asynccontextmanager
async def _without_time_limit(engine: AsyncEngine) -> AsyncIterator[AsyncEngine]:
    """Yield an engine for the same database without a limit on the duration of a statement."""
    own = create_async_engine(engine.url, poolclass=NullPool, connect_args={"timeout": 5})
    try:
        yield own
    finally:
        await own.dispose()


def _make_new(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(folder.iterdir()):
        raise InvalidField("folder", f"{folder} is not empty; name a new folder for each backup.")


def _reflected(connection: Connection) -> list[Table]:
    metadata = MetaData()
    metadata.reflect(connection)
    return metadata.sorted_tables


async def _dump_table(connection: AsyncConnection, table: Table, folder: Path) -> DumpedTable:
    columns = tuple(column.name for column in table.columns if column.computed is None)
    file = _file(folder, table.name)
    driver = await _driver(connection)
    with gzip.open(file, "wb", compresslevel=3) as out:

        async def write(data: bytes) -> None:
            out.write(data)

        status: str = await driver.copy_from_table(table.name, columns=columns, output=write)
    rows = int(status.rpartition(" ")[2])
    return DumpedTable(name=table.name, columns=columns, rows=rows, sha256=_digest(file))


async def _load_table(connection: AsyncConnection, table: DumpedTable, folder: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        with gzip.open(_file(folder, table.name)) as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece

    driver = await _driver(connection)
    status: str = await driver.copy_to_table(table.name, columns=table.columns, source=pieces(), timeout=None)
    if int(status.rpartition(" ")[2]) != table.rows:
        raise Unavailable(f"{table.name} was not loaded whole; restore again into an empty database")


async def _driver(connection: AsyncConnection) -> Any:
    """Return the driver's own connection, within the transaction of this connection."""
    await connection.execute(text("SELECT 1"))  # SQLAlchemy begins a transaction with the first statement
    return (await connection.get_raw_connection()).driver_connection


def _skip_numbers(connection: Connection) -> None:
    for table in _reflected(connection):
        for column in table.columns:
            if column.identity is not None:
                connection.execute(
                    text(
                        f"SELECT setval(pg_get_serial_sequence('{table.name}', '{column.name}'), "  # noqa: S608
                        f"coalesce(max({column.name}), 0) + {NUMBERS_LEFT_OUT}) FROM {table.name}"
                    )
                )


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.copy.gz"


def _digest(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
