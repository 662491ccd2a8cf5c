"""Read commands from the node's Redis stream."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
import structlog
from pydantic import ValidationError

from headway.contract.agents import COMMAND_FIELD, COMMANDS, AnyCommand, JoinReply
from headway.errors import HeadwayError
from headway.tls import CA_FILE
from worker_agent.link.service_api import Backoff, Membership
from worker_agent.telemetry.facts import CommandRead, Emit, ignore_fact

_log = structlog.get_logger()

_BLOCK_S = 5.0
_BATCH = 100

_REFUSED = (redis.AuthenticationError, redis.exceptions.NoPermissionError)
Renew = Callable[[JoinReply], None]
"""Function that replaces the given credentials with new ones. Raises HeadwayError."""
Handle = Callable[[AnyCommand], None]
"""Function that returns once the command has taken effect on disk. Only then is it removed from the stream."""


class CommandReader:
    """Reader that starts at the beginning of the stream and removes handled commands.

    So the stream holds only commands that no agent has handled yet, whatever restarts happen in between.
    """

    def __init__(
        self,
        membership: Membership,
        renew: Renew,
        handle: Handle,
        stopping: threading.Event,
        emit: Emit = ignore_fact,
    ) -> None:
        self._membership = membership
        self._renew = renew
        self._handle = handle
        self._stopping = stopping
        self._emit = emit
        self._backoff = Backoff(random.Random())
        self._unavailable = False

    def run(self) -> None:
        """Read commands until the agent stops. If Redis is unavailable, retry with backoff."""
        while not self._stopping.is_set():
            node = self._membership.wait(0.5)
            if node is None:
                continue
            try:
                self._read_from(node)
            except _REFUSED as error:
                self._ask_for_credentials(node, error)
                self._stopping.wait(self._backoff.next_s())
            except redis.RedisError as error:
                if not self._unavailable:
                    _log.warning(
                        "redis is unavailable; commands wait until it answers again", error=str(error)
                    )
                self._unavailable = True
                self._stopping.wait(self._backoff.next_s())

    def _ask_for_credentials(self, node: JoinReply, refusal: redis.RedisError) -> None:
        """Request new credentials after Redis has rejected the old ones.

        A restarted Redis has lost its users, and the service creates this node's user again.
        """
        _log.warning("redis rejects this node's credentials; requesting new ones", error=str(refusal))
        try:
            self._renew(node)
        except HeadwayError as error:
            _log.warning("no new credentials yet", error=str(error))

    def _read_from(self, node: JoinReply) -> None:
        """Read commands until the agent stops or its membership changes."""
        ca_file = os.environ.get(CA_FILE)
        trust = {"ssl_ca_certs": ca_file} if ca_file and node.redis_url.startswith("rediss://") else {}
        with redis.Redis.from_url(
            node.redis_url,
            decode_responses=True,
            socket_timeout=_BLOCK_S + 5,
            socket_connect_timeout=5,
            **trust,
        ) as client:
            client.ping()
            self._backoff.reset()
            self._unavailable = False
            _log.info("listening for commands", stream=node.stream)
            while not self._stopping.is_set() and self._membership.current() is node:
                self._read_once(client, node.stream)

    def _read_once(self, client: redis.Redis, stream: str) -> None:
        reply: Any = client.xread({stream: "0-0"}, count=_BATCH, block=int(_BLOCK_S * 1000))
        for entry_id, fields in _entries(reply):
            command = _parse(entry_id, fields)
            self._emit(CommandRead(command, _age_s(entry_id, time.time())))
            if command is not None:
                self._handle(command)
            client.xdel(stream, entry_id)


def _entries(reply: Any) -> list[tuple[str, dict[str, str]]]:
    """Return the entries of the stream, for either version of the Redis protocol."""
    if not reply:
        return []
    if isinstance(reply, dict):
        return [entry for batches in reply.values() for batch in batches for entry in batch]
    return [entry for _, entries in reply for entry in entries]


def _age_s(entry_id: str, now_s: float) -> float:
    """Return the seconds since an entry was added: its id begins with Redis's time in milliseconds."""
    return max(0.0, now_s - int(entry_id.partition("-")[0]) / 1000)


def _parse(entry_id: str, fields: dict[str, str]) -> AnyCommand | None:
    try:
        return COMMANDS.validate_json(fields[COMMAND_FIELD])
    except KeyError as error:
        _log.error("skipped a command that cannot be parsed", entry=entry_id, error=f"without {error}")
    except ValidationError as error:
        # Without the input: the arguments of a command may have secrets.
        told = error.json(include_input=False, include_url=False, include_context=False)
        _log.error("skipped a command that cannot be parsed", entry=entry_id, error=told)
    return None
