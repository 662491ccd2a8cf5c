"""Who an agent is, new credentials for it, and what it may ask for: only what it runs."""

from __future__ import annotations

from datetime import datetime

import structlog

from service.domain.credentials import Standing
from service.domain.errors import NotFound, WrongToken
from service.usecases.node_ports import HeldRuns, QueueAccess
from service.usecases.ports import Transaction, Transactions

log = structlog.get_logger()

_NOT_VALID = "this node's token is not valid any more; join again."
_REPLACED = (
    "this node's token was replaced by a newer one; join again. If this agent has not renewed it itself, its credentials were "
    "stolen."
)


async def authenticate(tx: Transaction, node_id: str, sha256: str, now: datetime) -> None:
    """Let pass who shows a valid token of the node. The first use of a new token ends the one before it.

    Raises:
        WrongToken: it is not valid. That an old one was shown is noted: somebody else may have it.
    """
    tokens = await tx.node_credentials.of(node_id)
    standing = Standing.UNKNOWN if tokens is None else tokens.standing(sha256, now)
    if not standing.valid:
        note_standing(node_id, standing)
        raise WrongToken(_REPLACED if standing is Standing.OLD else _NOT_VALID)
    assert tokens is not None, "an unknown node has no token"
    if standing is Standing.CURRENT and tokens.previous_sha256 is not None and tokens.used_since is None:
        await tx.node_credentials.used(node_id, sha256, now)


async def node_of_token(tx: Transaction, sha256: str, now: datetime) -> str | None:
    """The id of the node that this token is valid for."""
    found = await tx.node_credentials.node_of(sha256)
    if found is None:
        return None
    node_id, tokens = found
    standing = tokens.standing(sha256, now)
    note_standing(node_id, standing)
    return node_id if standing.valid else None


def note_standing(node_id: str, standing: Standing) -> None:
    """Tell of a token that was replaced and is used all the same."""
    if standing is Standing.OLD:
        log.warning(
            "old_credential_used",
            node=node_id,
            what_next="if it was not that agent itself, restored from a copy, its host's credentials were stolen",
        )


async def renew(
    tx: Transaction, node_id: str, *, presented_sha256: str, new_sha256: str, now: datetime
) -> None:
    """Make a new token the node's newest. The presented one is valid until the new one is used.

    Raises:
        WrongToken: the presented one is not valid.
    """
    await authenticate(tx, node_id, presented_sha256, now)
    if not await tx.node_credentials.replace(node_id, presented_sha256, new_sha256):
        raise WrongToken(_NOT_VALID)


async def check_holds(runs: HeldRuns, node_id: str, job_id: str, generation: int) -> None:
    """Raise NotFound unless the node has a slot for this generation of the job now."""
    if not await runs.holds(node_id, job_id, generation):
        raise NotFound(f"this node does not run generation {generation} of a job {job_id}.")


async def check_held(runs: HeldRuns, node_id: str, job_id: str, generation: int) -> None:
    """Raise NotFound unless the node has, or had, a slot for this generation of the job."""
    if not await runs.held(node_id, job_id, generation):
        raise NotFound(f"this node has not run generation {generation} of a job {job_id}.")


async def forget_gone(transactions: Transactions, queue: QueueAccess) -> int:
    """Take the access to command streams from nodes that exist no more; how many there were.

    Who has access is asked first: a node that joins meanwhile is stored before it gets its access.

    Raises:
        Unavailable: the database or the queue does not answer.
    """
    granted = await queue.granted()
    async with transactions.begin() as tx:
        known = await tx.held_runs.known(granted)
    gone = sorted(set(granted) - known)
    await queue.revoke(gone)
    return len(gone)
