"""`python -m service rotate-secrets`: encrypt every secret again with the first key.

To change the key, put the new one before the old one in HEADWAY_SECRETS_KEY and restart the service. Then run
this command, and remove the old key.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from service.adapters.keyring import ring_of
from service.domain.shared.errors import HeadwayServiceError
from service.main import Service
from service.settings import SettingsError, read_settings
from service.usecases.identity.audit import on_command_line
from service.usecases.identity.secrets import required, rotate
from service.usecases.notifications.webhooks import reseal_webhooks

VERBS = ("rotate-secrets",)


def main(argv: Sequence[str]) -> int:
    """Run the command. Return 0, or 1 after printing an error with a remedy."""
    parser = argparse.ArgumentParser(prog="python -m service", description="Encryption of secrets.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser(
        "rotate-secrets", help="encrypt every secret again with the first key of HEADWAY_SECRETS_KEY"
    )
    parser.parse_args(argv)
    try:
        count = asyncio.run(_rotate())
    except (SettingsError, HeadwayServiceError, OSError) as error:
        print(f"headway service: {error}", file=sys.stderr)  # noqa: T201  # error message of a program
        return 1
    print(f"secrets encrypted with the first key: {count}")  # noqa: T201  # output of a program
    return 0


async def _rotate() -> int:
    settings = read_settings(os.environ)
    keys = required(ring_of(settings.secrets))
    service = Service(settings)
    try:
        audited = on_command_line(service.database, "rotate-secrets", lambda: datetime.now(UTC))
        return await rotate(audited, keys) + await reseal_webhooks(audited, keys)
    finally:
        await service.close()
