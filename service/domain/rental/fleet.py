"""Reconciliation of rented machines: compare the leases in the database with the list of their provider.

These rules prevent waste of money:

- A machine is WANTED in the database before its provider is asked, and its id makes the request idempotent.
- A call without an answer may have succeeded. It is repeated, and the provider's list decides.
- A machine that is missing from the list still exists until it has been missing for `missing_s` in successful
  lists.
- A machine in the list without a lease, or with an ended lease, is terminated.
- The provider's figures decide what is billed, and from when to when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from service.domain.rental.machines import ENDED, Found, Machine, MachineReason, MachineState


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Timeouts in seconds.

    Attributes:
        answer_s: Limit for a provider that does not answer.
        join_s: Limit for the agent of a new machine to join.
        missing_s: Limit for a machine that the provider does not list.
        agent_s: Limit for a machine whose agent is silent.
        drain_s: Limit for jobs to leave a machine that is being released.
    """

    answer_s: float = 600.0
    join_s: float = 600.0
    missing_s: float = 300.0
    agent_s: float = 120.0
    drain_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Node that a machine has joined as. `empty` is true if no job holds a slot of it."""

    node_id: str
    state: NodeState
    seen_at: datetime
    empty: bool
    reclaim_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """Machine to terminate. `machine_id` is its lease, or None if no lease exists."""

    external_id: str
    machine_id: str | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """Rows to write, and then requests to send to the provider.

    `changed` are rows to update. `found` are rows to insert, for duplicates that a repeated launch created.
    `drains` are machines whose nodes are to be drained. `seen` is the time when each machine was last known
    to exist, for the next plan.
    """

    changed: tuple[Machine, ...] = ()
    found: tuple[Machine, ...] = ()
    launches: tuple[Machine, ...] = ()
    drains: tuple[Machine, ...] = ()
    terminations: tuple[Termination, ...] = ()
    seen: Mapping[str, datetime] = field(default_factory=dict)


def reconcile(
    machines: Sequence[Machine],
    listed: Sequence[Found] | None,
    nodes: Mapping[str, Joined],
    seen: Mapping[str, datetime],
    now: datetime,
    patience: Patience = Patience(),
) -> FleetPlan:
    """Return the plan for one provider.

    Args:
        machines: Machines with open leases, and every machine that the list names.
        listed: The provider's list, or None if the provider did not answer, so nothing is known about any machine.
        nodes: Nodes of the machines that have joined, by machine id.
        seen: `seen` of the previous plan. It is empty after a restart, so the timeouts then start again.
        now: The time of the list.
        patience: The timeouts.
    """
    own, spare, unknown = _matched(machines, listed or ())
    later: list[Machine] = []
    for machine in machines:
        one = _as_listed(machine, own.get(machine.id), now)
        later.append(one if one.state in ENDED else _in_time(one, nodes.get(one.id), now, patience))
    seen = {
        one.id: now if one.id in own else seen.get(one.id, now) for one in later if one.state not in ENDED
    }
    if listed is not None:
        later = [
            one if one.id in own else _if_missing(one, nodes.get(one.id), seen, now, patience)
            for one in later
        ]
    found = tuple(_duplicate(machine, one, now) for machine, one in spare)
    return FleetPlan(
        changed=tuple(one for one, before in zip(later, machines, strict=True) if one != before),
        found=found,
        launches=tuple(one for one in later if one.state is MachineState.WANTED),
        drains=tuple(one for one in later if _is_to_be_drained(one, nodes.get(one.id), now, patience)),
        terminations=(*_terminations([*later, *found], nodes, now, patience), *_orphans(unknown)),
        seen=seen,
    )


def launched(machine: Machine, found: Found, now: datetime) -> Machine:
    """Return the machine after its provider has answered a launch."""
    return _as_listed(machine, found, now)


def not_launched(machine: Machine, reason: MachineReason, message: str, now: datetime) -> Machine:
    """Return the machine after its provider has refused a launch."""
    return _moved(machine, MachineState.FAILED, reason, message, now)


def given_back(machine: Machine, reason: MachineReason, message: str, now: datetime) -> Machine:
    """Return the machine in state ENDING, to be released."""
    return _moved(machine, MachineState.ENDING, reason, message, now)


def joined(machine: Machine, now: datetime) -> Machine:
    """Return the machine after its agent has joined. A machine that is being released keeps its state.

    The message of a healthy machine remains the reason why it was rented.
    """
    if machine.state not in {MachineState.WANTED, MachineState.LAUNCHING}:
        return machine
    return _moved(machine, MachineState.RUNNING, MachineReason.JOINED, machine.message, now)


def _moved(
    machine: Machine, state: MachineState, reason: MachineReason, message: str, now: datetime
) -> Machine:
    return replace(machine, state=state, reason=reason.value, message=message, state_since=now)


def _matched(
    machines: Sequence[Machine], listed: Sequence[Found]
) -> tuple[dict[str, Found], list[tuple[Machine, Found]], list[Found]]:
    """Match a list with the leases: own entries by machine id, duplicates of a launch, and entries without a lease."""
    by_name = {machine.external_id: machine for machine in machines if machine.external_id is not None}
    by_id = {machine.id: machine for machine in machines}
    own: dict[str, Found] = {}
    spare: list[tuple[Machine, Found]] = []
    unknown: list[Found] = []
    # A running machine precedes an ended one. Ties have a fixed order, independent of the order of the list.
    for found in sorted(listed, key=lambda one: (one.ended, one.billed_from, one.external_id)):
        machine = by_name.get(found.external_id)
        if machine is None:
            machine = by_id.get(found.machine_id)
            if machine is None:
                unknown.append(found)
                continue
            if machine.external_id is not None or machine.id in own:
                spare.append((machine, found))
                continue
        own[machine.id] = found
    return own, spare, unknown


def _as_listed(machine: Machine, found: Found | None, now: datetime) -> Machine:
    """Return the machine updated from its entry in the provider's list."""
    if found is None:
        return machine
    # An end without a time counts as now. Clocks that disagree must not make a bill negative.
    ended_at = max(found.billed_to or machine.billed_to or now, found.billed_from)
    billed = replace(
        machine,
        external_id=found.external_id,
        billed_from=found.billed_from,
        billed_to=ended_at if found.ended else None,
    )
    if found.ended:
        return billed if machine.state is MachineState.GONE else _gone(billed, found.message, now)
    if machine.state in ENDED:
        message = "it was still running after its lease had ended"
        return _moved(billed, MachineState.ENDING, MachineReason.LEFT_OVER, message, now)
    if machine.state is MachineState.WANTED:
        return _moved(billed, MachineState.LAUNCHING, MachineReason.LAUNCHED, machine.message, now)
    return billed


def _gone(machine: Machine, message: str, now: datetime) -> Machine:
    if machine.state is MachineState.ENDING:
        return replace(machine, state=MachineState.GONE, state_since=now)
    taken = machine.market is Market.SPOT
    reason = MachineReason.SPOT_RECLAIMED if taken else MachineReason.ENDED_BY_PROVIDER
    return _moved(machine, MachineState.GONE, reason, message or "its provider terminated it", now)


def _in_time(machine: Machine, node: Joined | None, now: datetime, patience: Patience) -> Machine:
    """Return the machine after its timeouts and the state of its node are checked."""
    since_s = (now - machine.state_since).total_seconds()
    alive = node is not None and node.state is not NodeState.LOST
    match machine.state:
        case MachineState.WANTED if since_s > patience.answer_s:
            message = f"its provider has not answered for {since_s:.0f} s"
            return given_back(machine, MachineReason.GIVEN_UP, message, now)
        case MachineState.LAUNCHING if alive:
            return joined(machine, now)
        case MachineState.LAUNCHING if since_s > patience.join_s:
            message = f"its agent has not joined within {patience.join_s:.0f} s"
            return given_back(machine, MachineReason.NEVER_JOINED, message, now)
        case MachineState.RUNNING if node is not None and node.reclaim_at is not None:
            message = f"its provider takes it away at {node.reclaim_at:%H:%M:%S} UTC"
            return given_back(machine, MachineReason.SPOT_RECLAIMED, message, now)
        case MachineState.RUNNING if not alive:
            heard = machine.state_since if node is None else max(node.seen_at, machine.state_since)
            silent_s = (now - heard).total_seconds()
            if silent_s > patience.agent_s:
                message = f"its agent has not reported for {silent_s:.0f} s"
                return given_back(machine, MachineReason.AGENT_LOST, message, now)
        case _:
            pass
    return machine


def _if_missing(
    machine: Machine, node: Joined | None, seen: Mapping[str, datetime], now: datetime, patience: Patience
) -> Machine:
    """Return the machine after a list that does not contain it."""
    if machine.state in ENDED or machine.state is MachineState.WANTED:
        return machine
    long_ago = now - timedelta(seconds=patience.missing_s)
    last_seen = (
        max(seen[machine.id], machine.state_since) if machine.external_id is None else seen[machine.id]
    )
    if last_seen > long_ago or (node is not None and node.seen_at > long_ago):
        return machine
    if machine.external_id is None:
        message = "it never appeared in its provider's list"
        return _moved(machine, MachineState.FAILED, MachineReason.GIVEN_UP, message, now)
    if machine.billed_from is not None:
        machine = replace(machine, billed_to=max(machine.billed_from, last_seen))
    message = f"its provider has not listed it since {last_seen:%H:%M:%S} UTC"
    return _moved(machine, MachineState.GONE, MachineReason.VANISHED, message, now)


def _duplicate(machine: Machine, found: Found, now: datetime) -> Machine:
    """Return a separate lease for a duplicate that a launch created: it is paid for until it is gone."""
    return replace(
        machine,
        id=f"{machine.id}-{found.external_id}",
        state=MachineState.GONE if found.ended else MachineState.ENDING,
        reason=MachineReason.DUPLICATE.value,
        message=f"the launch of {machine.id} created two machines",
        external_id=found.external_id,
        join_token_sha256=None,
        state_since=now,
        billed_from=found.billed_from,
        billed_to=max(found.billed_to or now, found.billed_from) if found.ended else None,
    )


def _is_being_vacated(machine: Machine, node: Joined | None, now: datetime, patience: Patience) -> bool:
    """Return whether jobs still run on a machine that is being released and have time left to leave it."""
    if node is None or node.empty or node.state in {NodeState.LOST, NodeState.DRAINED}:
        return False
    return (now - machine.state_since).total_seconds() <= patience.drain_s


def _is_to_be_drained(machine: Machine, node: Joined | None, now: datetime, patience: Patience) -> bool:
    return (
        machine.state is MachineState.ENDING
        and node is not None
        and node.state in {NodeState.READY, NodeState.CORDONED}
        and (now - machine.state_since).total_seconds() <= patience.drain_s
    )


def _terminations(
    machines: Iterable[Machine], nodes: Mapping[str, Joined], now: datetime, patience: Patience
) -> list[Termination]:
    return [
        Termination(external_id=one.external_id, machine_id=one.id, message=one.message)
        for one in machines
        if one.state is MachineState.ENDING
        and one.external_id is not None
        and not _is_being_vacated(one, nodes.get(one.id), now, patience)
        and not _is_to_be_drained(one, nodes.get(one.id), now, patience)
    ]


def _orphans(unknown: Iterable[Found]) -> list[Termination]:
    return [
        Termination(external_id=one.external_id, machine_id=None, message="it has no lease in this cluster")
        for one in unknown
        if not one.ended
    ]


_FAILURES = frozenset(
    {MachineReason.NO_CAPACITY, MachineReason.NEVER_JOINED, MachineReason.GIVEN_UP, MachineReason.REFUSED}
)
_FIRST_COOL_S = 30.0
_LONGEST_COOL_S = 3600.0


@dataclass(frozen=True, slots=True)
class RentalPlace:
    """Provider, place, type and market of a machine: the unit of backoff when a launch fails."""

    provider: str
    region: str
    zone: str
    instance_type: str
    market: Market


def place_of(machine: Machine) -> RentalPlace:
    """Return the place where the machine was rented."""
    return RentalPlace(machine.provider, machine.region, machine.zone, machine.instance_type, machine.market)


@dataclass(frozen=True, slots=True)
class LaunchBackoff:
    """Backoff of a place: no launch there before `until`."""

    until: datetime
    message: str


def backoff_s(failures: int) -> float:
    """Return the seconds without launches after so many failed attempts in a row: 30, then doubling, at most an hour."""
    return min(_FIRST_COOL_S * 2.0 ** min(max(failures - 1, 0), 16), _LONGEST_COOL_S)


def cooling(machines: Iterable[Machine], now: datetime) -> dict[RentalPlace, LaunchBackoff]:
    """Return the backoff of each place where launches fail. `machines` are the machines of the last day.

    Launches that were requested together are one attempt. A refused launch would be refused again, so its
    backoff is the longest at once.
    """
    attempts: dict[RentalPlace, _Attempts] = {}
    for machine in sorted(machines, key=lambda one: (one.state_since, one.id)):
        place = place_of(machine)
        if machine.reason in _FAILURES:
            attempts[place] = attempts.get(place, _Attempts()).after(machine)
        elif machine.state not in {MachineState.WANTED, MachineState.LAUNCHING}:
            attempts.pop(place, None)
    return {
        place: LaunchBackoff(one.until, one.message)
        for place, one in attempts.items()
        if one.until is not None and one.until > now
    }


@dataclass(frozen=True, slots=True)
class _Attempts:
    """Failed attempts in a row to launch machines in a place."""

    failures: int = 0
    until: datetime | None = None
    message: str = ""

    def after(self, failed: Machine) -> _Attempts:
        """Return the attempts after another failed launch."""
        again = self.until is None or failed.requested_at >= self.until
        failures = self.failures + again
        wait_s = _LONGEST_COOL_S if failed.reason == MachineReason.REFUSED else backoff_s(failures)
        until = failed.state_since + timedelta(seconds=wait_s)
        return _Attempts(failures, until if self.until is None else max(until, self.until), failed.message)
