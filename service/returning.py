"""`python -m service return-machines`: end every machine of the configured providers, and store what it has cost.

`headway down` runs it for `headway up --provider`, after the scheduler has stopped and while the API still takes the last
reports of the machines' agents.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence

from service.adapters.provider_choice import installed_providers
from service.domain.rental.machines import Machine
from service.domain.shared.errors import HeadwayServiceError
from service.main import Service, wall_now
from service.settings import SettingsError, read_settings
from service.usecases.identity.audit import on_command_line
from service.usecases.rental.return_all import return_all

VERBS = ("return-machines",)
_POLL_S = 1.0


def main(argv: Sequence[str]) -> int:
    """Run the command. Return 0, or 1 after printing an error with a remedy."""
    parser = argparse.ArgumentParser(prog="python -m service", description="Return of rented machines.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser(
        "return-machines", help="end every machine of HEADWAY_PROVIDERS, once no scheduler runs"
    )
    verb.add_argument(
        "--patience", type=float, default=90.0, metavar="SECONDS", help="longest wait (default: %(default)s)"
    )
    arguments = parser.parse_args(argv)
    try:
        left = asyncio.run(_return(arguments.patience))
    except (SettingsError, HeadwayServiceError, OSError) as error:
        print(f"headway service: {error}", file=sys.stderr)  # noqa: T201  # error message of a program
        return 1
    if left:
        names = ", ".join(f"{one.external_id or one.id} ({one.provider})" for one in left)
        print(  # noqa: T201  # error message of a program
            f"headway service: not known to be gone: {names}; end them with their provider's own tools, or start "
            "Headway again.",
            file=sys.stderr,
        )
    return 1 if left else 0


async def _return(patience_s: float) -> list[Machine]:
    settings = read_settings(os.environ)
    providers = installed_providers(settings.rental.providers, os.environ, wall_now)
    service = Service(settings, providers)
    give_up_s = time.monotonic() + patience_s

    async def pause() -> bool:
        await asyncio.sleep(_POLL_S)
        return time.monotonic() < give_up_s

    try:
        transactions = on_command_line(service.database, "return-machines", wall_now)
        renting = service.rents(transactions).renting
        return await return_all(transactions, renting, service.launch, now=wall_now, pause=pause)
    finally:
        await service.close()
