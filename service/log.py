"""The service's log: plain or as JSON, and without credentials."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from headway.contract.redaction import without_credentials
from headway.errors import HeadwayError
from headway.log_lines import log_as_json, wants_json
from service.environment import SettingsError
from service.usecases.facts import Accepted, CommandTaken, Fact, Happened

log = structlog.get_logger()


def configure_log(env: Mapping[str, str]) -> None:
    """For people, or as JSON where the environment asks for it.

    Errors have plain tracebacks: the usual ones show local variables, tokens among them, and take so long to draw that a
    process with many errors does nothing else.

    Raises:
        SettingsError: it asks for something else.
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
    """What happens to jobs, with the ids by which it is found in the logs of other programs; with `request_id` or `round` where
    that is what made it happen.
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
            pass  # rounds have a line of their own
