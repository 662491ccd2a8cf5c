"""Credentials of agents: authentication, renewal, and access limited to the jobs that their nodes run."""

from __future__ import annotations

from datetime import datetime

import structlog

from service.domain.identity.credentials import TokenState
from service.domain.shared.errors import NotFound, WrongToken
from service.usecases.ports.credentials import NodeCredentials, QueueAccess
from service.usecases.ports.transactions import Transaction, Transactions

log = structlog.get_logger()

_NOT_VALID = "this node's token is not valid any more; join again."
_REPLACED = (
    "this node's token was replaced by a newer one; join again. If this agent has not renewed it itself, its credentials were "
    "stolen."
)


async def authenticate(tx: Transaction, node_id: str, sha256: str, now: datetime) -> None:
    """Accept a valid token of the node.

    The first use of a new token invalidates the previous one.

    Raises:
        WrongToken: the token is not valid. The use of a replaced token is logged, since it may be stolen.
    """
    tokens = await tx.credentials.of_node(node_id)
    state = TokenState.UNKNOWN if tokens is None else tokens.state_of(sha256, now)
    if not state.valid:
        warn_if_replaced(node_id, state)
        raise WrongToken(_REPLACED if state is TokenState.OLD else _NOT_VALID)
    assert tokens is not None, "an unknown node has no token"
    if state is TokenState.CURRENT and tokens.previous_sha256 is not None and tokens.used_since is None:
        await tx.credentials.token_used(node_id, sha256, now)


async def node_of_token(tx: Transaction, sha256: str, now: datetime) -> str | None:
    """Return the id of the node for which this token is valid, or None."""
    found = await tx.credentials.node_of(sha256)
    if found is None:
        return None
    node_id, tokens = found
    state = tokens.state_of(sha256, now)
    warn_if_replaced(node_id, state)
    return node_id if state.valid else None


def warn_if_replaced(node_id: str, state: TokenState) -> None:
    """Log the use of a token that was replaced."""
    if state is TokenState.OLD:
        log.warning(
            "old_credential_used",
            node=node_id,
            what_next="if it was not that agent itself, restored from a copy, its host's credentials were stolen",
        )


async def renew(
    tx: Transaction, node_id: str, *, presented_sha256: str, new_sha256: str, now: datetime
) -> None:
    """Make a new token the node's newest.

    The presented token is valid until the new one is used.

    Raises:
        WrongToken: the presented token is not valid.
    """
    await authenticate(tx, node_id, presented_sha256, now)
    if not await tx.credentials.replace_token(node_id, presented_sha256, new_sha256):
        raise WrongToken(_NOT_VALID)


async def check_holds(runs: NodeCredentials, node_id: str, job_id: str, generation: int) -> None:
    """Raise NotFound unless the node now has a slot for this generation of the job."""
    if not await runs.holds(node_id, job_id, generation):
        raise NotFound(f"this node does not run generation {generation} of a job {job_id}.")


async def check_held(runs: NodeCredentials, node_id: str, job_id: str, generation: int) -> None:
    """Raise NotFound unless the node has, or had, a slot for this generation of the job."""
    if not await runs.held(node_id, job_id, generation):
        raise NotFound(f"this node has not run generation {generation} of a job {job_id}.")


async def forget_gone(transactions: Transactions, queue: QueueAccess) -> int:
    """Revoke the command stream access of nodes that no longer exist. Return their number.

    The list of nodes with access is read first, since a node that joins meanwhile is stored before it gets
    access.

    Raises:
        Unavailable: the database or the queue does not answer.
    """
    granted = await queue.granted()
    async with transactions.begin() as tx:
        known = await tx.credentials.known_nodes(granted)
    gone = sorted(set(granted) - known)
    await queue.revoke(gone)
    return len(gone)
