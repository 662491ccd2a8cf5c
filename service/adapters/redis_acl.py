"""Who may read which command stream: one user of Redis per node, or one password for all."""

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
from service.domain.errors import Unavailable

log = structlog.get_logger()

_PROBE = "headway-probe"
_COMMANDS = ("+ping", "+hello", "+select", "+xread", "+xdel")
"""Exactly what an agent sends: it waits for commands, and removes those that it has taken up."""


class RedisAcl:
    """Implements `usecases.node_ports.QueueAccess`: every node has a user that reaches its own stream and nothing else.

    Redis keeps users in memory: after a restart they are gone, unless it has an ACL file. An agent that is refused asks for
    new credentials, and so gets its user again.
    """

    def __init__(self, redis: Redis, agent_url: str) -> None:
        self._redis = redis
        self._agent_url = urlsplit(agent_url)
        # Users belong to a whole server, whose databases may serve several clusters.
        self._prefix = f"headway-{self._agent_url.path.strip('/') or '0'}-"

    async def problem(self) -> str | None:
        """Why users cannot be made; None when they can, or when Redis does not answer now."""
        try:
            await self._set_user(_PROBE, "reset")
            await self._redis.acl_deluser(_PROBE)
            open_to_all = await self._is_open()
        except (NoPermissionError, ResponseError):
            return (
                "Redis does not let HEADWAY_REDIS_URL make users (ACL SETUSER), so agents could not be kept to their own "
                "streams; give its user +acl, or set HEADWAY_REDIS_ACL=off to let all agents share HEADWAY_AGENT_REDIS_URL."
            )
        except (RedisError, OSError):
            return None
        if open_to_all:
            log.warning(
                "redis_without_password",
                what_next="whoever reaches Redis reads and sends commands: set requirepass",
            )
        return None

    async def grant(self, node_id: str) -> str:
        """The URL with which the node alone reads its stream."""
        password = secrets.token_urlsafe(32)
        digest = hashlib.sha256(
            password.encode()
        ).hexdigest()  # Redis's log of slow commands must not tell it
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
        """As `ACL SETUSER` takes them: the client's own method leaves out `resetchannels`, and Redis 6 opens all to a new user."""
        await self._redis.execute_command("ACL", "SETUSER", user, *rules)  # type: ignore[no-untyped-call]

    async def _is_open(self) -> bool:
        """Whether one needs no password to be the default user."""
        default: Any = await self._redis.acl_getuser("default")
        return {"on", "nopass"} <= set(default["flags"])

    async def granted(self) -> list[str]:
        """Ids of the nodes that have a user."""
        try:
            users: list[str | bytes] = await self._redis.acl_users()
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error
        names = (user.decode() if isinstance(user, bytes) else user for user in users)
        return [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]

    async def revoke(self, node_ids: Sequence[str]) -> None:
        """Remove the users of nodes; Redis ends their connections."""
        if not node_ids:
            return
        try:
            await self._redis.acl_deluser(*(self._user(node_id) for node_id in node_ids))
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error


class SharedQueue:
    """Implements `usecases.node_ports.QueueAccess` where the operator has chosen that all agents share one URL."""

    def __init__(self, agent_url: str) -> None:
        self._agent_url = agent_url

    async def problem(self) -> None:
        """None: it was chosen."""
        log.warning("redis_shared", what_next="any agent reads every stream; HEADWAY_REDIS_ACL=on ends that")

    async def grant(self, node_id: str) -> str:  # noqa: ARG002 - all have the same
        """The URL of all."""
        return self._agent_url

    async def granted(self) -> list[str]:
        """Nobody has anything of his own."""
        return []

    async def revoke(self, node_ids: Sequence[str]) -> None:
        """There is nothing to take."""


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(f"Redis does not answer ({type(error).__name__}); its users are left as they are")
