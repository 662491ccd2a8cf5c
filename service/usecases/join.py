"""A host joins the cluster, or its restarted agent comes back."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime

from headway.contract.agents import JoinRequest, NodeState
from service.domain.errors import InvalidField, NodeNameTaken
from service.usecases.ports import Transaction
from service.usecases.records import Bell, NodeRecord


def digest_token(token: str) -> str:
    """Tokens are stored as digests only."""
    return hashlib.sha256(token.encode()).hexdigest()


async def join(
    tx: Transaction, request: JoinRequest, *, node_id: str, token: str, now: datetime
) -> NodeRecord:
    """The node, known from now on by `token`. An agent that comes back keeps its node's id and state.

    Raises:
        NodeNameTaken: another live agent has this name.
        InvalidField: slots twice, or no port to use.
    """
    indices = [slot.index for slot in request.slots]
    if len(set(indices)) < len(indices):
        raise InvalidField("slots", "two slots have the same index")
    if request.last_port < request.first_port:
        raise InvalidField("last_port", "last_port is smaller than first_port")
    known = await tx.nodes.find(request.name)
    if known is not None and known.instance != request.instance and known.state is not NodeState.LOST:
        raise NodeNameTaken(
            f"a live agent is named {request.name} already; choose another --name, or wait until that "
            "node is LOST."
        )
    fresh = NodeRecord(
        id=node_id,
        name=request.name,
        instance=request.instance,
        token_sha256=digest_token(token),
        state=NodeState.READY,
        wanted_state=NodeState.READY,
        message="",
        address=request.address,
        first_port=request.first_port,
        last_port=request.last_port,
        slots=tuple(request.slots),
        agent_version=request.agent_version,
        joined_at=now,
        seen_at=now,
    )
    if known is not None:
        same = known.instance == request.instance
        fresh = replace(
            fresh,
            id=known.id,
            state=known.state,
            wanted_state=known.wanted_state,
            message=known.message,
            joined_at=known.joined_at,
            last_sequence=known.last_sequence if same else 0,
        )
    await tx.nodes.save(fresh)
    tx.ring(Bell.ROUND)
    return fresh
