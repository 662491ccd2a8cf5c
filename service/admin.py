"""`python -m service create-admin NAME`: the first admin, who makes all others; also the way back in when nobody is left.

Whoever may write to the database may do this; no API needs to run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import ValidationError

from headway.contract.identity import Role, UserRequest
from service.adapters.postgres.schema import schema_problem
from service.api.context import new_id
from service.domain.errors import HeadwayServiceError
from service.main import Service, run_migrations
from service.settings import SettingsError, read_settings
from service.usecases.audit import on_command_line
from service.usecases.tokens import new_token
from service.usecases.users import make_admin

VERBS = ("create-admin",)


def main(argv: Sequence[str]) -> int:
    """The exit code: 0, or 1 after a sentence that says what to do."""
    parser = argparse.ArgumentParser(prog="python -m service", description="People, without a token.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser(
        "create-admin", help="make a user an admin everywhere, and print a new token of theirs, this once"
    )
    verb.add_argument("name", help="e-mail address or user name")
    verb.add_argument("--migrate", action="store_true", help="bring the database up to date first")
    verb.add_argument(
        "--token-stdin",
        action="store_true",
        help="let the token on the standard input be theirs, instead of printing a new one; again, it is checked to work",
    )
    arguments = parser.parse_args(argv)
    try:
        name = UserRequest(name=arguments.name, role=Role.ADMIN).name
        given = sys.stdin.read().strip() if arguments.token_stdin else None
        token = asyncio.run(_create_admin(name, given, migrate_first=arguments.migrate))
    except (SettingsError, HeadwayServiceError, OSError, ValidationError, ValueError) as error:
        said = f"{arguments.name!r} is no name for a user" if isinstance(error, ValidationError) else error
        print(f"headway service: {said}", file=sys.stderr)  # noqa: T201 - the last word of a program
        return 1
    if given is None:
        print(f"{name} is an admin. This token is shown once:", file=sys.stderr)  # noqa: T201
        print(token)  # noqa: T201 - what a program was asked for
    return 0


async def _create_admin(name: str, given: str | None, *, migrate_first: bool) -> str:
    service = Service(read_settings(os.environ))
    try:
        if migrate_first:
            await run_migrations(service)
        problem = await schema_problem(service.database.engine)
        if problem is not None:
            raise SettingsError(problem)
        token, now = new_token() if given is None else given, datetime.now(UTC)
        told = on_command_line(service.database, "create-admin", lambda: datetime.now(UTC), target=name)
        async with told.begin() as tx:
            await make_admin(
                tx, name, user_id=new_id("u", now), token_id=new_id("t", now), token=token, now=now
            )
        return token
    finally:
        await service.close()
