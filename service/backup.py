"""`python -m service backup FOLDER`, `restore FOLDER` and `restored`: backups of the database.

A backup may be taken while the service runs. A restore needs an empty database and a stopped service. It then
adapts the restored state to the present: see `service.usecases.upkeep.restore`. `restored` does only that
second part, for a database that was restored by other means.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from service.adapters.postgres.database import PostgresTransaction
from service.adapters.postgres.engine import dump
from service.adapters.postgres.engine.schema import schema_problem
from service.adapters.redis import RedisCommandQueue
from service.domain.shared.errors import HeadwayServiceError, Unavailable
from service.main import Service
from service.settings import SettingsError, read_settings
from service.usecases.storage.bundles import bundle_key
from service.usecases.upkeep.restore import Restored, bring_back

VERBS = ("backup", "restore", "restored")


async def run_backup(service: Service, folder: Path) -> list[str]:
    """Write the database to a folder. Return the lines to print."""
    manifest = await dump.dump(service.database.engine, folder)
    return [
        f"{manifest.rows:,} rows of {len(manifest.tables)} tables, as of {manifest.at}, are written to {folder}.",
        f"Copy {service.settings.storage_url} after this backup, not before: rows refer to objects of the storage.",
    ]


async def run_restore(service: Service, folder: Path) -> list[str]:
    """Fill an empty database from a folder, and adapt its state to the present. Return the lines to print."""
    manifest = dump.read_manifest(folder)
    await dump.load(service.database.engine, folder, manifest)
    return [f"{manifest.rows:,} rows are restored from {folder}.", *await _bring_back(service)]


async def run_restored(service: Service) -> list[str]:
    """Adapt the state of a database that was restored by other means. Return the lines to print."""
    return await _bring_back(service)


async def _bring_back(service: Service) -> list[str]:
    now = datetime.now(UTC)
    number = await _empty_queue(service)
    async with service.database.session() as session:
        tx = PostgresTransaction(session)
        await tx.commands.skip_deliveries(number, now)
        done = await bring_back(tx, service.launch, now)
        await session.commit()
    problem = await schema_problem(service.database.engine)
    if problem is not None:
        raise SettingsError(problem)
    return [*_report(done), *await _missing_bundles(service, done)]


async def _empty_queue(service: Service) -> int:
    """Delete the commands since the backup, which name generations that no longer exist. Return `CommandQueue.empty`'s number."""
    try:
        number = await RedisCommandQueue(service.redis).empty()
    except Unavailable as error:
        raise Unavailable(
            f"{error.message}. Start the Redis of HEADWAY_REDIS_URL, or an empty one, and run `python -m service restored`"
        ) from error
    assert number is not None, "it was asked for without a condition"
    return number


def _report(done: Restored) -> list[str]:
    gap = done.at - done.known_until
    return [
        f"{done.stopped} jobs that were running start again from their last checkpoints; {done.waiting} are still waiting.",
        f"{done.nodes} nodes get jobs again once their agents report and have stopped the ranks that still run.",
        f"What happened between {done.known_until:%Y-%m-%d %H:%M:%S} and {done.at:%Y-%m-%d %H:%M:%S} UTC "
        f"({gap.total_seconds() / 3600:.1f} h) is not billed to any job. Jobs submitted in that time are lost. Machines rented in that "
        "time are found in their provider's list.",
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
    """Run the command. Return 0, or 1 after printing an error with a remedy."""
    parser = argparse.ArgumentParser(prog="python -m service", description="Backups of the database.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    saving = verbs.add_parser("backup", help="write the database to a new folder, while the service runs")
    loading = verbs.add_parser(
        "restore", help="fill an empty database from the folder of a backup; the service must be stopped"
    )
    verbs.add_parser(
        "restored", help="adapt a database that was restored by other means; the service must be stopped"
    )
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
            print(line)  # noqa: T201  # output of a program
    except (SettingsError, HeadwayServiceError, OSError, ValueError) as error:
        print(f"headway service: {error}", file=sys.stderr)  # noqa: T201  # error message of a program
        return 1
    return 0


async def _run(work: Callable[[Service], Awaitable[list[str]]]) -> list[str]:
    service = Service(read_settings(os.environ))
    try:
        return await work(service)
    finally:
        await service.close()
