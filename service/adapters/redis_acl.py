"""Read access to command streams: one Redis user for each node, or one password for all."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import structlog
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from service.adapters.redis import stream_of
from service.domain.shared.errors import Unavailable
from service.usecases.ports.credentials import QueueAccess

log = structlog.get_logger()

_PROBE = "headway-probe"
_COMMANDS = ("+ping", "+hello", "+select", "+xread", "+xdel")
"""Exactly the commands that an agent sends: it waits for commands and deletes those it has handled."""


class RedisAcl(QueueAccess):
    """Access with one Redis user per node, which reaches only the node's own stream.

    Redis keeps users in memory: without an ACL file it loses them at a restart. A refused agent requests new
    credentials, which creates its user again.
    """

    def __init__(self, redis: Redis, agent_url: str) -> None:
        self._redis = redis
        self._agent_url = urlsplit(agent_url)
        # Users belong to the whole server, and its databases can serve several clusters.
        self._prefix = f"headway-{self._agent_url.path.strip('/') or '0'}-"

    async def problem(self) -> str | None:
        """Return the reason why users cannot be created, with the remedy.

        Returns None if they can, or if Redis does not answer now.
        """
        try:
            await self._set_user(_PROBE, "reset")
            await self._redis.acl_deluser(_PROBE)
            open_to_all = await self._is_open()
        except (NoPermissionError, ResponseError):
            return (
                "Redis does not let HEADWAY_REDIS_URL create users (ACL SETUSER), so agents could not be limited to their own "
                "streams; give its user +acl, or set HEADWAY_REDIS_ACL=off to let all agents share HEADWAY_AGENT_REDIS_URL."
            )
        except (RedisError, OSError):
            return None
        if open_to_all:
            log.warning(
                "redis_without_password",
                what_next="every client that reaches Redis can read and send commands: set requirepass",
            )
        return None

    async def grant(self, node_id: str) -> str:
        password = secrets.token_urlsafe(32)
        digest = hashlib.sha256(
            password.encode()
        ).hexdigest()  # Redis's log of slow commands must not show the password
        rules = ("reset", "resetchannels", "on", f"#{digest}", f"~{stream_of(node_id)}", *_COMMANDS)
        try:
            await self._set_user(self._user(node_id), *rules)
        except (RedisError, OSError) as error:
            log.warning("redis_user_not_made", node=node_id, error=f"{type(error).__name__}: {error}")
        place = self._agent_url.netloc.rpartition("@")[2]
        return urlunsplit(self._agent_url._replace(netloc=f"{self._user(node_id)}:{password}@{place}"))

    def _user(self, node_id: str) -> str:
        return f"{self._prefix}{node_id}"

    async def _set_user(self, user: str, *rules: str) -> None:
        """Run `ACL SETUSER` for a user.

        The client's own method omits `resetchannels`, and Redis 6 opens all channels to a new user.
        """
        await self._redis.execute_command("ACL", "SETUSER", user, *rules)  # type: ignore[no-untyped-call]

    async def _is_open(self) -> bool:
        """Return True if the default user needs no password."""
        default: Any = await self._redis.acl_getuser("default")
        return {"on", "nopass"} <= set(default["flags"])

    async def granted(self) -> list[str]:
        try:
            users: list[str | bytes] = await self._redis.acl_users()
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error
        names = (user.decode() if isinstance(user, bytes) else user for user in users)
        return [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]

    async def revoke(self, node_ids: Sequence[str]) -> None:
        if not node_ids:
            return
        try:
            await self._redis.acl_deluser(*(self._user(node_id) for node_id in node_ids))
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error


class SharedQueue(QueueAccess):
    """Access with one shared URL for all agents, if the operator chose that."""

    def __init__(self, agent_url: str) -> None:
        self._agent_url = agent_url

    async def problem(self) -> None:
        """Return None, because the operator chose the shared URL; log a warning about it."""
        log.warning("redis_shared", what_next="every agent can read every stream: set HEADWAY_REDIS_ACL=on")

    async def grant(self, node_id: str) -> str:  # noqa: ARG002 - shared by all nodes
        return self._agent_url

    async def granted(self) -> list[str]:
        """Return an empty list, because no node has its own user."""
        return []

    async def revoke(self, node_ids: Sequence[str]) -> None:
        """Do nothing, because no node has its own user."""


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(
        f"Redis does not answer ({type(error).__name__}); its users are unchanged, and the service tries again"
    )
