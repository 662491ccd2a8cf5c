"""The log of the service: plain text or JSON, without credentials."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from headway.contract.values.redaction import without_credentials
from headway.errors import HeadwayError
from headway.log_lines import log_as_json, wants_json
from service.environment import SettingsError
from service.usecases.ports.facts import Accepted, CommandTaken, Fact, Happened

log = structlog.get_logger()


def configure_log(env: Mapping[str, str]) -> None:
    """Configure the log as plain text, or as JSON if the environment asks for it.

    Tracebacks are plain. The default ones show local variables, including tokens, and take so long to format
    that they would block a process with many errors.

    Raises:
        SettingsError: the log format is invalid.
    """
    try:
        if wants_json(env, default=False):
            log_as_json(sys.stdout)
            return
    except HeadwayError as error:
        raise SettingsError(str(error)) from None
    *processors, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(
        colors=sys.stdout.isatty(), exception_formatter=structlog.dev.plain_traceback
    )

    def render(logger: Any, name: str, event: MutableMapping[str, Any]) -> str:
        return without_credentials(plain(logger, name, event))

    structlog.configure(processors=[*processors, render])


def log_fact(fact: Fact) -> None:
    """Log an event of a job with its ids, which the logs of other programs contain as well.

    The log line also has the `request_id` or `round` that caused the event, if there is one.
    """
    match fact:
        case Accepted(job):
            log.info("job_accepted", job=job.id, name=job.spec.name, project=job.spec.project)
        case Happened(job, event):
            log.info(
                "job_event",
                kind=event.kind,
                job=job.id,
                generation=job.generation,
                state=job.state.value,
                reason=job.reason.value,
            )
        case CommandTaken():
            log.info(
                "command_taken",
                command=fact.command_id,
                kind=fact.kind,
                job=fact.job_id,
                generation=fact.generation,
                node=fact.node_id,
            )
        case _:
            pass  # rounds are logged elsewhere
