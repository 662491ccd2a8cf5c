"""A host joins the cluster, or its restarted agent comes back."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, replace
from datetime import datetime

from headway.contract.agents import JoinRequest, NodeState
from service.domain.errors import InvalidField, NodeNameTaken, WrongToken
from service.domain.rental.fleet import joined
from service.domain.rental.machines import ENDED, Machine, MachineState
from service.usecases.node_credentials import note_standing
from service.usecases.ports import Transaction
from service.usecases.records import Bell, NodeRecord


def digest_token(token: str) -> str:
    """Tokens are stored as digests only."""
    return hashlib.sha256(token.encode()).hexdigest()


def machine_token(secret: str, machine_id: str) -> str:
    """What the agent of a machine joins with, once. It follows from the machine's id: a launch that is asked for twice
    must be the same to the letter, and no token is stored.
    """
    return hmac.new(secret.encode(), f"machine {machine_id}".encode(), hashlib.sha256).hexdigest()


def node_name_of(machine: Machine) -> str:
    """The name of the node that a machine joins as."""
    return f"{machine.market.value}-{machine.id[-8:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """By what an agent may join. `known` is the node that has its name already, locked.

    `machine` (locked) is the one whose own join token it has shown, `own_sha256` the digest of its node's own token, and
    `join_token_id` the join token that an operator has made; all None for the permanent one.
    """

    known: NodeRecord | None
    machine: Machine | None = None
    own_sha256: str | None = None
    join_token_id: str | None = None


async def admit(
    tx: Transaction, request: JoinRequest, sha256: str, *, permanent: bool, now: datetime
) -> Admission:
    """Whether the bearer of a token may join: its digest is `sha256`; `permanent` says that any host may join with it.

    A use of a join token counts with this transaction. Who did not hear the answer asks again with the same: the same agent
    does not use up two.

    Raises:
        WrongToken: it is none of those, is used up or has expired, or is another's.
    """
    known = await tx.nodes.find(request.name)
    if permanent:
        return Admission(known=known)
    if known is not None and await _is_own(tx, known, sha256, now):
        if known.instance != request.instance:
            raise WrongToken(
                f"this is the token of the agent of {known.name}, which has another state folder."
            )
        return Admission(known=known, own_sha256=sha256)
    machine = await tx.machines.of_token(sha256)
    if machine is not None:
        _check_machine(machine, request, known)
        return Admission(known=known, machine=machine)
    token = await tx.join_tokens.find(sha256)
    if token is None:
        raise WrongToken(
            "the join token is missing or wrong; an operator makes one: headway join-token create."
        )
    again = known is not None and known.instance == request.instance and known.join_token_id == token.id
    if token.expires_at <= now or not (again or await tx.join_tokens.take(token.id, now)):
        why = "has expired" if token.expires_at <= now else "was used already"
        raise WrongToken(f"this join token {why}; an operator makes another: headway join-token create.")
    return Admission(known=known, join_token_id=token.id)


async def _is_own(tx: Transaction, known: NodeRecord, sha256: str, now: datetime) -> bool:
    """Whether it is the token of this very node. One of another node is as unknown as any."""
    tokens = await tx.node_credentials.of(known.id)
    if tokens is None:
        return False
    standing = tokens.standing(sha256, now)
    note_standing(known.id, standing)
    return standing.valid


async def join(
    tx: Transaction, request: JoinRequest, admission: Admission, *, node_id: str, token: str, now: datetime
) -> NodeRecord:
    """The node, known from now on by `token`. An agent that comes back keeps its node's id and state, and what is known
    of its machine; the node's token with which it came works until the new one is used.

    Raises:
        NodeNameTaken: another live agent has this name.
        InvalidField: slots twice, or no port to use.
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
    fresh = _with_known(_fresh(request, node_id, token, now), known)
    if admission.own_sha256 is None:
        fresh = replace(fresh, join_token_id=admission.join_token_id)
    if machine is not None:
        fresh = replace(
            fresh,
            market=machine.market,
            machine_id=machine.id,
            # Of the slots that there are: the machine's dollars are spread over these.
            usd_per_slot_h=machine.usd_per_h / len(request.slots),
        )
        await tx.machines.save(joined(machine, now))
    await tx.nodes.save(fresh)
    await tx.node_credentials.made(fresh.id, admission.own_sha256)
    tx.ring(Bell.ROUND)
    return fresh


def _check_machine(machine: Machine, request: JoinRequest, known: NodeRecord | None) -> None:
    if machine.state in ENDED or machine.state is MachineState.ENDING:
        raise WrongToken(f"the lease of this machine has ended: {machine.message}.")
    if request.name != node_name_of(machine):
        raise WrongToken(f"this join token is for the node {node_name_of(machine)} alone.")
    if known is not None and known.instance != request.instance:
        raise WrongToken(f"the join token of {request.name} was used already; it works once.")


def _fresh(request: JoinRequest, node_id: str, token: str, now: datetime) -> NodeRecord:
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
        joined_at=now,
        seen_at=now,
    )


def _with_known(fresh: NodeRecord, known: NodeRecord | None) -> NodeRecord:
    """The node with what is kept when its agent joins again. Another agent under the name of a lost node is on another
    host: nothing of a machine is its own.
    """
    if known is None:
        return fresh
    fresh = replace(
        fresh,
        id=known.id,
        state=known.state,
        wanted_state=NodeState.READY if _was_taken_away(known, fresh) else known.wanted_state,
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
        reclaim_at=None if _was_taken_away(known, fresh) else known.reclaim_at,
    )


def _was_taken_away(known: NodeRecord, fresh: NodeRecord) -> bool:
    """Whether a notice about the host has come true, be it that another host has its name: whoever joins under it now was
    not meant.
    """
    if known.state is not NodeState.LOST or known.reclaim_at is None:
        return False
    return known.instance != fresh.instance or known.reclaim_at <= fresh.seen_at
