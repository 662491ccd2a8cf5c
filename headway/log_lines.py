"""JSON log lines of the service and the agent: one object per line, without credentials."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, TextIO

import structlog
from structlog.typing import Processor

from headway.contract.values.redaction import without_credentials
from headway.errors import HeadwayError

ENV_LOG_FORMAT: Final = "HEADWAY_LOG_FORMAT"
_FIRST: Final = ("time", "level", "event")


def wants_json(env: Mapping[str, str], *, default: bool) -> bool:
    """Return whether the environment asks for JSON logs, or `default` if it does not say.

    Raises:
        HeadwayError: the variable has another value.
    """
    wanted = env.get(ENV_LOG_FORMAT, "").strip().lower()
    if wanted not in {"", "json", "text"}:
        raise HeadwayError(f"{ENV_LOG_FORMAT} is {wanted!r}.", "Set it to json or text, or leave it out.")
    return wanted == "json" if wanted else default


def log_as_json(stream: TextIO, *more: Processor) -> None:
    """Log JSON objects to `stream` from now on.

    Each line has `time` (UTC, ISO 8601), `level`, `event`, the values bound in `structlog.contextvars` and
    the fields of the call. Warnings of libraries become lines of the same form. The processors `more` add
    fields to each line.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *more,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            _line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(stream),
    )
    logging.getLogger().handlers = [_LibraryLogs()]


def _line(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    fields = {name: event[name] for name in _FIRST if name in event} | dict(event)
    try:
        text = json.dumps(fields, default=str, allow_nan=False)
    except ValueError:  # a number that JSON cannot represent
        text = json.dumps({name: str(value) for name, value in fields.items()})
    return without_credentials(text)


class _LibraryLogs(logging.Handler):
    """Handler that forwards log records of libraries to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Forward a record to structlog."""
        structlog.get_logger().log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info
        )
