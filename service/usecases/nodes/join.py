"""Joining of hosts: new ones, and those whose agent was restarted."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, replace
from datetime import datetime

from headway.contract.agents import JoinRequest, NodeState
from service.domain.rental.fleet import joined
from service.domain.rental.machines import ENDED, Machine, MachineState
from service.domain.shared.errors import InvalidField, NodeNameTaken, WrongToken
from service.usecases.nodes.credentials import warn_if_replaced
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.nodes import NodeRecord
from service.usecases.ports.transactions import Transaction


def digest_token(token: str) -> str:
    """Return the digest of a token. Tokens are stored only as digests."""
    return hashlib.sha256(token.encode()).hexdigest()


def machine_token(secret: str, machine_id: str) -> str:
    """Return the join token of a machine's agent, which works once.

    It is derived from the machine's id. A repeated launch must be identical, and no token is stored.
    """
    return hmac.new(secret.encode(), f"machine {machine_id}".encode(), hashlib.sha256).hexdigest()


def node_name_of(machine: Machine) -> str:
    """Return the name of the node that a machine joins as."""
    return f"{machine.market.value}-{machine.id[-8:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAdmission:
    """Grounds on which an agent may join.

    `known` is the node that has its name already, locked. `machine` (locked) is the machine whose join token
    was presented. `own_sha256` is the digest of the node's own token. `join_token_id` names a join token of
    an operator. All but `known` are None for the permanent join token.
    """

    known: NodeRecord | None
    machine: Machine | None = None
    own_sha256: str | None = None
    join_token_id: str | None = None


async def admit(
    tx: Transaction, request: JoinRequest, sha256: str, *, permanent: bool, now: datetime
) -> JoinAdmission:
    """Check whether the bearer of a token may join.

    `sha256` is the token's digest. `permanent` says that it is the permanent token, with which any host may
    join. A use of a join token commits with this transaction. An agent that repeats its request after a lost
    answer consumes no second use.

    Raises:
        WrongToken: the token is unknown, used up, expired, or belongs to another agent.
    """
    known = await tx.nodes.find(request.name)
    if permanent:
        return JoinAdmission(known=known)
    if known is not None and await _is_own(tx, known, sha256, now):
        if known.instance != request.instance:
            raise WrongToken(
                f"this is the token of the agent of {known.name}, which has another state folder."
            )
        return JoinAdmission(known=known, own_sha256=sha256)
    machine = await tx.machines.of_token(sha256)
    if machine is not None:
        _check_machine(machine, request, known)
        return JoinAdmission(known=known, machine=machine)
    token = await tx.credentials.find_join_token(sha256)
    if token is None:
        raise WrongToken(
            "the join token is missing or wrong; an operator creates one: headway join-token create."
        )
    repeated = known is not None and known.instance == request.instance and known.join_token_id == token.id
    if token.expires_at <= now or not (repeated or await tx.credentials.take_join_token(token.id, now)):
        why = "has expired" if token.expires_at <= now else "was used already"
        raise WrongToken(f"this join token {why}; an operator creates another: headway join-token create.")
    return JoinAdmission(known=known, join_token_id=token.id)


async def _is_own(tx: Transaction, known: NodeRecord, sha256: str, now: datetime) -> bool:
    """Return True if the token is valid for this node. A token of another node counts as unknown."""
    tokens = await tx.credentials.of_node(known.id)
    if tokens is None:
        return False
    state = tokens.state_of(sha256, now)
    warn_if_replaced(known.id, state)
    return state.valid


async def join(
    tx: Transaction,
    request: JoinRequest,
    admission: JoinAdmission,
    *,
    node_id: str,
    token: str,
    now: datetime,
) -> NodeRecord:
    """Store the node with `token` as its new token. Return the node.

    An agent that comes back keeps its node's id, state and machine. The node's token that it presented works
    until the new one is used.

    Raises:
        NodeNameTaken: another live agent has this name.
        InvalidField: two slots with the same index, or an empty port range.
    """
    tx.audit.by(f"agent {request.name}")
    indices = [slot.index for slot in request.slots]
    if len(set(indices)) < len(indices):
        raise InvalidField("slots", "two slots have the same index")
    if request.last_port < request.first_port:
        raise InvalidField("last_port", "last_port is smaller than first_port")
    known, machine = admission.known, admission.machine
    if known is not None and known.instance != request.instance and known.state is not NodeState.LOST:
        raise NodeNameTaken(
            f"a live agent is named {request.name} already; choose another --name, or wait until that "
            "node is LOST."
        )
    fresh = _rejoined(_new_node(request, node_id, token, now), known)
    if admission.own_sha256 is None:
        fresh = replace(fresh, join_token_id=admission.join_token_id)
    if machine is not None:
        fresh = replace(
            fresh,
            market=machine.market,
            machine_id=machine.id,
            # The machine's price is divided by the slots that exist.
            usd_per_slot_h=machine.usd_per_h / len(request.slots),
        )
        await tx.machines.save(joined(machine, now))
    await tx.nodes.save(fresh)
    await tx.credentials.token_made(fresh.id, admission.own_sha256)
    tx.wake(WakeUp.ROUND)
    return fresh


def _check_machine(machine: Machine, request: JoinRequest, known: NodeRecord | None) -> None:
    if machine.state in ENDED or machine.state is MachineState.ENDING:
        raise WrongToken(f"the lease of this machine has ended: {machine.message}.")
    if request.name != node_name_of(machine):
        raise WrongToken(f"this join token is for the node {node_name_of(machine)} alone.")
    if known is not None and known.instance != request.instance:
        raise WrongToken(f"the join token of {request.name} was used already; it works once.")


def _new_node(request: JoinRequest, node_id: str, token: str, now: datetime) -> NodeRecord:
    return NodeRecord(
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
        container_engine=request.container_engine,
        labels=request.labels,
        joined_at=now,
        seen_at=now,
    )


def _rejoined(fresh: NodeRecord, known: NodeRecord | None) -> NodeRecord:
    """Return the node with the fields that it keeps when its agent joins again.

    Another agent with the name of a lost node is on another host, so it does not keep the machine's fields.
    """
    if known is None:
        return fresh
    fresh = replace(
        fresh,
        id=known.id,
        state=known.state,
        wanted_state=NodeState.READY if _was_reclaimed(known, fresh) else known.wanted_state,
        message=known.message,
        joined_at=known.joined_at,
    )
    if known.instance != fresh.instance:
        return fresh
    return replace(
        fresh,
        last_sequence=known.last_sequence,
        join_token_id=known.join_token_id,
        market=known.market,
        machine_id=known.machine_id,
        usd_per_slot_h=known.usd_per_slot_h,
        reclaim_at=None if _was_reclaimed(known, fresh) else known.reclaim_at,
    )


def _was_reclaimed(known: NodeRecord, fresh: NodeRecord) -> bool:
    """Return True if an interruption notice for the former host has come true, so that it does not apply to
    this agent.
    """
    if known.state is not NodeState.LOST or known.reclaim_at is None:
        return False
    return known.instance != fresh.instance or known.reclaim_at <= fresh.seen_at
