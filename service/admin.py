"""`python -m service create-admin NAME`: create the first admin, or a new admin if none can sign in.

The command needs write access to the database, and no running API.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import ValidationError

from headway.contract.views.identity import Role, UserRequest
from service.adapters.postgres.engine.schema import schema_problem
from service.api.http.context import new_id
from service.domain.shared.errors import HeadwayServiceError
from service.main import Service, run_migrations
from service.settings import SettingsError, read_settings
from service.usecases.identity.audit import on_command_line
from service.usecases.identity.tokens import new_token
from service.usecases.identity.users import make_admin

VERBS = ("create-admin",)


def main(argv: Sequence[str]) -> int:
    """Run the command. Return 0, or 1 after printing an error with a remedy."""
    parser = argparse.ArgumentParser(prog="python -m service", description="Create users without a token.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser(
        "create-admin", help="make a user an admin of the service, and print a new token once"
    )
    verb.add_argument("name", help="e-mail address or user name")
    verb.add_argument("--migrate", action="store_true", help="bring the database up to date first")
    verb.add_argument(
        "--token-stdin",
        action="store_true",
        help="use the token on the standard input instead of a new one; if it exists already, check that it works",
    )
    arguments = parser.parse_args(argv)
    try:
        name = UserRequest(name=arguments.name, role=Role.ADMIN).name
        given = sys.stdin.read().strip() if arguments.token_stdin else None
        token = asyncio.run(_create_admin(name, given, migrate_first=arguments.migrate))
    except (SettingsError, HeadwayServiceError, OSError, ValidationError, ValueError) as error:
        message = f"{arguments.name!r} is not a user name" if isinstance(error, ValidationError) else error
        print(f"headway service: {message}", file=sys.stderr)  # noqa: T201  # error message of a program
        return 1
    if given is None:
        print(f"{name} is an admin. This token is shown once:", file=sys.stderr)  # noqa: T201
        print(token)  # noqa: T201  # output of a program
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
        audited = on_command_line(service.database, "create-admin", lambda: datetime.now(UTC), target=name)
        async with audited.begin() as tx:
            await make_admin(
                tx, name, user_id=new_id("u", now), token_id=new_id("t", now), token=token, now=now
            )
        return token
    finally:
        await service.close()
