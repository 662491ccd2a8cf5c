"""Token of this node: kept over restarts, stored before its first use, and renewed periodically."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from headway.contract.agents import JoinReply, JoinRequest
from worker_agent.host.folders import read_json, write_json
from worker_agent.link.service_api import Membership, Refused, ServiceApi

_log = structlog.get_logger()

_UNAUTHORISED = 401
_HOW_TO_JOIN = "Pass a join token with --token or HEADWAY_JOIN_TOKEN. An operator creates one with `headway join-token create`."


class NodeKeys:
    """Credentials with which this agent joins and works. Thread-safe.

    Args:
        path: file with the node's token, readable for this user alone.
        join_token: token for the first join; empty if the agent has a token of the node.
    """

    def __init__(self, api: ServiceApi, membership: Membership, path: Path, join_token: str) -> None:
        self._api = api
        self._membership = membership
        self._path = path
        self._join_token = join_token
        self._renewing = threading.Lock()

    def join(self, request: JoinRequest) -> JoinReply:
        """Join with the node's own token if the service accepts it, else with the join token.

        Raises:
            Unreachable: the caller should retry.
            Refused: the service rejects both tokens, or the node's name.
        """
        kept = (read_json(self._path) or {}).get("node_token")
        reply = self._by_own(request, kept) if kept else None
        if reply is None:
            if not self._join_token:
                raise Refused(
                    _UNAUTHORISED, "This agent has no token that the service accepts.", _HOW_TO_JOIN
                )
            reply = self._api.join(request, self._join_token)
        self._keep(reply.node_token)
        self._membership.update(reply)
        return reply

    def renew(self, old: JoinReply) -> None:
        """Replace the credentials `old` with new ones, unless another thread has just done so.

        Raises:
            Unreachable, NotJoined: the old credentials stay valid, or the agent has to join again.
            Refused: the service issues no new credentials.
        """
        with self._renewing:
            if self._membership.current() is not old:
                return
            fresh = self._api.renew_credentials()
            self._keep(fresh.node_token)
            self._membership.update(
                old.model_copy(update={"node_token": fresh.node_token, "redis_url": fresh.redis_url})
            )
        _log.info("credentials renewed", node_id=old.node_id)

    def _by_own(self, request: JoinRequest, kept: str) -> JoinReply | None:
        """Join with the node's own token. Return None if the service rejects it.

        That happens after the node was deleted, or if its name belongs to another node now.
        """
        try:
            return self._api.join(request, kept)
        except Refused as error:
            if error.status != _UNAUTHORISED:
                raise
            _log.warning("the service rejects this node's own token", error=str(error))
            return None

    def _keep(self, token: str) -> None:
        """Store the token. Do this before its first use, which invalidates the earlier token."""
        write_json(self._path, {"node_token": token})
