"""This node's own token: kept over restarts, stored before it is used, renewed now and then."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from headway.contract.agents import JoinReply, JoinRequest
from worker_agent.folders import read_json, write_json
from worker_agent.service_api import Membership, Refused, ServiceApi

_log = structlog.get_logger()

_UNAUTHORISED = 401
_HOW_TO_JOIN = "Give it a join token with --token or HEADWAY_JOIN_TOKEN; an operator makes one: headway join-token create."


class NodeKeys:
    """By what this agent joins, and works. Safe to share between threads.

    Args:
        path: where the node's token is kept, for this user alone.
        join_token: for the first time; empty where the agent has been here before.
    """

    def __init__(self, api: ServiceApi, membership: Membership, path: Path, join_token: str) -> None:
        self._api = api
        self._membership = membership
        self._path = path
        self._join_token = join_token
        self._renewing = threading.Lock()

    def join(self, request: JoinRequest) -> JoinReply:
        """Join: with the node's own token if it has one that still works, else with the join token.

        Raises:
            Unreachable: try again.
            Refused: neither is taken, or the name is.
        """
        kept = (read_json(self._path) or {}).get("node_token")
        reply = self._by_own(request, kept) if kept else None
        if reply is None:
            if not self._join_token:
                raise Refused(_UNAUTHORISED, "This agent has no token that the service takes.", _HOW_TO_JOIN)
            reply = self._api.join(request, self._join_token)
        self._keep(reply.node_token)
        self._membership.update(reply)
        return reply

    def renew(self, seen: JoinReply) -> None:
        """Get new credentials in the place of `seen`, unless somebody else just has.

        Raises:
            Unreachable, NotJoined: those of before still work, or the agent joins again.
            Refused: the service gives none.
        """
        with self._renewing:
            if self._membership.current() is not seen:
                return
            fresh = self._api.renew_credentials()
            self._keep(fresh.node_token)
            self._membership.update(
                seen.model_copy(update={"node_token": fresh.node_token, "redis_url": fresh.redis_url})
            )
        _log.info("credentials renewed", node_id=seen.node_id)

    def _by_own(self, request: JoinRequest, kept: str) -> JoinReply | None:
        """None when the token is not taken (any more): the node was forgotten, or is another's now."""
        try:
            return self._api.join(request, kept)
        except Refused as error:
            if error.status != _UNAUTHORISED:
                raise
            _log.warning("the service does not take this node's own token", error=str(error))
            return None

    def _keep(self, token: str) -> None:
        """Before it is used: with its first use the one before is over."""
        write_json(self._path, {"node_token": token})
