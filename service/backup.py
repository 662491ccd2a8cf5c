"""`python -m service backup FOLDER`, `restore FOLDER` and `restored`: offline work on the database, beside no service.

A backup may be taken while everything runs. A restore goes into an empty database, and then cuts it loose from the field:
see `usecases.restore`. `restored` does the second part alone, for a database that was brought back by other means.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from redis.exceptions import RedisError

from service.adapters.postgres import dump
from service.adapters.postgres.database import PostgresTransaction
from service.adapters.postgres.restoration import PostgresRestoration
from service.adapters.postgres.schema import schema_problem
from service.domain.errors import HeadwayServiceError, Unavailable
from service.main import Service
from service.settings import SettingsError, read_settings
from service.usecases.bundles import bundle_key
from service.usecases.restore import Restored, bring_back

VERBS = ("backup", "restore", "restored")


async def run_backup(service: Service, folder: Path) -> list[str]:
    """Write the database to a folder. Returns what to say."""
    manifest = await dump.dump(service.database.engine, folder)
    return [
        f"{manifest.rows:,} rows of {len(manifest.tables)} tables, as of {manifest.at}, are in {folder}.",
        f"Copy {service.settings.storage_url} now, and not before: rows name objects, and objects name no rows.",
    ]


async def run_restore(service: Service, folder: Path) -> list[str]:
    """Fill an empty database from a folder, and make it usable. Returns what to say."""
    manifest = dump.read_manifest(folder)
    await dump.load(service.database.engine, folder, manifest)
    return [f"{manifest.rows:,} rows are restored from {folder}.", *await _bring_back(service)]


async def run_restored(service: Service) -> list[str]:
    """Make a database usable that somebody else has brought back. Returns what to say."""
    return await _bring_back(service)


async def _bring_back(service: Service) -> list[str]:
    await _empty_streams(service)
    async with service.database.engine.connect() as connection:
        done = await bring_back(
            PostgresTransaction(connection),
            PostgresRestoration(connection),
            service.launch,
            datetime.now(UTC),
        )
        await connection.commit()
    problem = await schema_problem(service.database.engine)
    if problem is not None:
        raise SettingsError(problem)
    return [*_said(done), *await _missing_bundles(service, done)]


async def _empty_streams(service: Service) -> None:
    """Commands of the time since the backup are for generations that nobody knows any more."""
    try:
        streams = [key async for key in service.redis.scan_iter("headway:node:*")]
        if streams:
            await service.redis.delete(*streams)
    except (RedisError, OSError) as error:
        raise Unavailable(
            f"Redis does not answer at HEADWAY_REDIS_URL ({type(error).__name__}), and may hold commands of the time since "
            "the backup; start it, or empty, and run `python -m service restored`"
        ) from error


def _said(done: Restored) -> list[str]:
    gap = done.at - done.known_until
    return [
        f"{done.stopped} jobs that ran then start again from their last checkpoints; {done.waiting} waited then, and wait.",
        f"{done.nodes} nodes take jobs again as soon as their agents report and have stopped what they still run.",
        f"What happened between {done.known_until:%Y-%m-%d %H:%M:%S} and {done.at:%Y-%m-%d %H:%M:%S} UTC "
        f"({gap.total_seconds() / 3600:.1f} h) is in no job's bill: jobs submitted since are gone, machines rented since are "
        "found by their provider's list.",
        "Start the service now.",
    ]


async def _missing_bundles(service: Service, done: Restored) -> list[str]:
    present = {one.key async for one in service.storage.entries("bundles/")}
    missing = [digest for digest in done.bundles if bundle_key(digest) not in present]
    if not missing:
        return []
    return [
        f"MISSING in {service.settings.storage_url}: {len(missing)} bundles that jobs need, such as {missing[0]}. Restore the "
        "storage too, from a copy that was made after this backup, or cancel those jobs and submit them again."
    ]


def main(argv: Sequence[str]) -> int:
    """The exit code: 0, or 1 after a sentence that says what to do."""
    parser = argparse.ArgumentParser(prog="python -m service", description="Backups of the database.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    saving = verbs.add_parser("backup", help="write the database to a new folder, while the service runs")
    loading = verbs.add_parser(
        "restore", help="fill an empty database from such a folder; the service is stopped"
    )
    verbs.add_parser("restored", help="the database was brought back by other means; the service is stopped")
    for verb in (saving, loading):
        verb.add_argument("folder", type=Path)
    arguments = parser.parse_args(argv)
    works: dict[str, Callable[[Service], Awaitable[list[str]]]] = {
        "backup": lambda service: run_backup(service, arguments.folder),
        "restore": lambda service: run_restore(service, arguments.folder),
        "restored": run_restored,
    }
    try:
        for line in asyncio.run(_run(works[arguments.verb])):
            print(line)  # noqa: T201 - what a program was asked for
    except (SettingsError, HeadwayServiceError, OSError, ValueError) as error:
        print(f"headway service: {error}", file=sys.stderr)  # noqa: T201 - the last word of a program
        return 1
    return 0


async def _run(work: Callable[[Service], Awaitable[list[str]]]) -> list[str]:
    service = Service(read_settings(os.environ))
    try:
        return await work(service)
    finally:
        await service.close()
