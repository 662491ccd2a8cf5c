"""Interfaces for the credentials of agents, inside and outside the database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from headway.contract.credentials import StorageCall, StorageCredentials
from headway.contract.views.identity import JoinTokenView
from service.domain.identity.credentials import NodeTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Permission to have storage requests signed for a job's checkpoints, while the node runs this generation
    of the job.
    """

    node_id: str
    job_id: str
    generation: int
    expires_at: datetime


class NodeCredentials(Protocol):
    """Digests of agents' tokens and of ranks' tickets, and checks of what a node may access."""

    async def of_node(self, node_id: str) -> NodeTokens | None:
        """Return the tokens of a node, or None if the node does not exist."""

    async def node_of(self, sha256: str) -> tuple[str, NodeTokens] | None:
        """Return the node that has or had this token, or None."""

    async def token_used(self, node_id: str, sha256: str, now: datetime) -> None:
        """Store the first use of the node's newest token, which invalidates the previous one."""

    async def token_made(self, node_id: str, previous_sha256: str | None) -> None:
        """Store that the node's newest token was created now. The previous one works until the newest is used."""

    async def replace_token(self, node_id: str, presented_sha256: str, new_sha256: str) -> bool:
        """Make a new token the newest in exchange for a valid one. Return False if the presented token is not valid."""

    async def add_join_token(self, token: JoinTokenView, sha256: str) -> None:
        """Store a new join token, and delete those that expired long ago."""

    async def join_tokens(self) -> list[JoinTokenView]:
        """Return the join tokens that can still be used or expired recently, newest first."""

    async def find_join_token(self, sha256: str) -> JoinTokenView | None:
        """Return the join token with this digest, or None."""

    async def take_join_token(self, token_id: str, now: datetime) -> bool:
        """Consume one use of a join token.

        Return False if it has no use left or has expired. If several callers take the last use at once,
        exactly one succeeds.
        """

    async def remove_join_token(self, token_id: str) -> bool:
        """Invalidate a join token. Return False if it does not exist."""

    async def holds(self, node_id: str, job_id: str, generation: int) -> bool:
        """Return True if the node now has a slot for this generation of the job."""

    async def held(self, node_id: str, job_id: str, generation: int) -> bool:
        """Return True if the node has, or in the retained history had, a slot for this generation of the job."""

    async def needs_bundle(self, node_id: str, digest: str) -> bool:
        """Return True if a job that now has a slot of the node starts from this bundle."""

    async def known_nodes(self, node_ids: Collection[str]) -> set[str]:
        """Return the ids of the nodes that exist."""

    async def add_ticket(self, sha256: str, ticket: Ticket, now: datetime) -> None:
        """Store a new ticket, and delete expired ones."""

    async def find_ticket(self, sha256: str) -> Ticket | None:
        """Return the ticket with this digest, expired or not, or None."""


class QueueAccess(Protocol):
    """Access control of the command streams."""

    async def grant(self, node_id: str) -> str:
        """Return the URL with which only this node can read its stream.

        New connections with the previous URL are refused. The call never fails: if the queue does not answer
        now, it refuses the URL later, and the agent asks again.
        """

    async def granted(self) -> list[str]:
        """Return the ids of the nodes that have access. Raise Unavailable if the queue does not answer."""

    async def revoke(self, node_ids: Sequence[str]) -> None:
        """Revoke the access of these nodes. Raise Unavailable if the queue does not answer."""


class StorageKeys(Protocol):
    """Source of short-lived keys for parts of the object storage."""

    async def keys_for(self, prefix: str, session: str) -> StorageCredentials | None:
        """Return short-lived keys that cover only the objects under a prefix, which ends in `/`.

        Return None if the storage cannot issue restricted keys: a local folder, or a store without a
        configured role. `session` identifies the holder of the keys in the provider's audit log.

        Raises:
            Unavailable: the provider does not answer.
        """


class StorageSigner(Protocol):
    """Signer of object storage requests. Its keys never leave the service."""

    async def sign(self, prefix: str, calls: Sequence[StorageCall], valid_s: int) -> list[str]:
        """Return the signed URL of each request under a prefix, which ends in `/`.

        Raise Unavailable if there are no keys now.
        """

    def uri_of(self, prefix: str) -> str:
        """Return the URI of the prefix, as ranks use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccess:
    """Interfaces that give agents access to services besides the API."""

    queue: QueueAccess
    storage: StorageKeys
    signer: StorageSigner | None = None
    """The signer of requests of ranks, used instead of keys; None if ranks get keys."""
