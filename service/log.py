"""The service's log: plain, and without credentials."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from headway.contract.redaction import without_credentials


def configure_log() -> None:
    """Errors with plain tracebacks: the usual ones show local variables, tokens among them, and take so long to draw that a
    process with many errors does nothing else.
    """
    *processors, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(
        colors=sys.stdout.isatty(), exception_formatter=structlog.dev.plain_traceback
    )

    def render(logger: Any, name: str, event: MutableMapping[str, Any]) -> str:
        return without_credentials(plain(logger, name, event))

    structlog.configure(processors=[*processors, render])
