"""`python -m service rotate-secrets`: seal every secret anew, with the first of the keys.

To change the key: put the new one before the old one in HEADWAY_SECRETS_KEY, start the service anew, run this, and take the old
one out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from service.adapters.keyring import ring_of
from service.domain.errors import HeadwayServiceError
from service.main import Service
from service.settings import SettingsError, read_settings
from service.usecases.audit import on_command_line
from service.usecases.secrets import required, rotate

VERBS = ("rotate-secrets",)


def main(argv: Sequence[str]) -> int:
    """The exit code: 0, or 1 after a sentence that says what to do."""
    parser = argparse.ArgumentParser(prog="python -m service", description="Secrets, and their keys.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("rotate-secrets", help="seal every secret anew with the first of HEADWAY_SECRETS_KEY")
    parser.parse_args(argv)
    try:
        count = asyncio.run(_rotate())
    except (SettingsError, HeadwayServiceError, OSError) as error:
        print(f"headway service: {error}", file=sys.stderr)  # noqa: T201 - the last word of a program
        return 1
    print(f"{count} secrets are sealed with the newest key.")  # noqa: T201 - what a program was asked for
    return 0


async def _rotate() -> int:
    settings = read_settings(os.environ)
    keys = required(ring_of(settings.secrets))
    service = Service(settings)
    try:
        told = on_command_line(service.database, "rotate-secrets", lambda: datetime.now(UTC))
        return await rotate(told, keys)
    finally:
        await service.close()
