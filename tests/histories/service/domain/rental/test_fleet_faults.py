"""Tests with a faulty provider and crashes of the service between any two steps: no leak, and no double billing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from service.domain.rental.fleet import Joined, given_back, joined, launched, not_launched, reconcile
from service.domain.rental.machines import ENDED, Found, Machine, MachineReason, MachineState
from tests.unit.service.builders import NOW, machine_of
from tests.unit.service.domain.rental.test_fleet import node_of


class Lost(Exception):
    """Missing answer of the provider, or a crash of the service."""


@dataclass
class Instance:
    """Instance as it really exists at the provider."""

    external_id: str
    machine_id: str
    began: datetime
    ended: datetime | None = None
    listed_from: datetime = NOW


@dataclass
class World:
    """Provider, its clock (`skew` seconds off) and the service's database. `badness` is the probability of a
    fault per step.
    """

    rng: random.Random
    badness: float
    now: datetime = NOW
    instances: dict[str, Instance] = field(default_factory=dict)
    rows: dict[str, Machine] = field(default_factory=dict)
    joined: dict[str, Joined] = field(default_factory=dict)
    seen: dict[str, datetime] = field(default_factory=dict)
    skew: timedelta = timedelta()
    faults: int = 0
    wanted: int = 0

    def bad(self) -> bool:
        happens = self.rng.random() < self.badness
        self.faults += happens
        return happens

    def theirs(self) -> datetime:
        return self.now + self.skew

    def crash(self) -> None:
        """Crash the service, which forgets everything that was not written."""
        if self.bad():
            self.seen = {}
            raise Lost

    def launch(self, machine: Machine) -> Found | MachineReason:
        if self.bad():
            raise Lost
        mine = [one for one in self.instances.values() if one.machine_id == machine.id]
        if not mine or self.bad():  # A repeated request may even create two.
            if not mine and self.bad():
                return self.rng.choice([MachineReason.NO_CAPACITY, MachineReason.REFUSED])
            for _ in range(2 if self.bad() else 1):
                number = len(self.instances)
                hidden_s = self.rng.uniform(0, 60) if self.bad() else 0.0
                self.instances[f"i-{number}"] = Instance(
                    f"i-{number}",
                    machine.id,
                    self.theirs(),
                    listed_from=self.now + timedelta(seconds=hidden_s),
                )
            mine = [one for one in self.instances.values() if one.machine_id == machine.id]
        if self.bad():
            raise Lost
        return self.shown(self.rng.choice(mine))

    def terminate(self, external_id: str) -> None:
        if self.bad():
            raise Lost
        self.end(self.instances[external_id])
        if self.bad():
            raise Lost

    def end(self, instance: Instance) -> None:
        if instance.ended is None:
            instance.ended = max(self.theirs(), instance.began)

    def list(self) -> list[Found] | None:
        if self.bad():
            return None
        shown = [one for one in self.instances.values() if one.listed_from <= self.now]
        self.rng.shuffle(shown)
        return [self.shown(one) for one in shown if not self.bad()]

    def shown(self, one: Instance) -> Found:
        return Found(
            external_id=one.external_id,
            machine_id=one.machine_id,
            ended=one.ended is not None,
            billed_from=one.began,
            billed_to=one.ended,
        )

    def live(self) -> None:
        """Let time pass: agents join or not, machines end or not, and clocks drift."""
        self.now += timedelta(seconds=self.rng.choice([1, 10, 10, 60]))
        if self.bad():
            self.skew = timedelta(seconds=self.rng.uniform(-120, 120))
        for one in self.instances.values():
            if one.ended is None and self.bad():
                self.end(one)
            row = self.rows.get(one.machine_id)
            if one.ended is None and row is not None and row.state not in ENDED and not self.bad():
                known = self.joined.get(row.id)
                state = NodeState.READY if known is None or known.state is NodeState.LOST else known.state
                self.joined[row.id] = node_of(state=state, seen_at=self.now)
                self.rows[row.id] = joined(row, self.now)
        for machine_id, node in self.joined.items():
            if (self.now - node.seen_at).total_seconds() > 15:
                self.joined[machine_id] = replace(node, state=NodeState.LOST)

    def want(self) -> None:
        machine = machine_of(f"m{self.wanted}", requested_at=self.now, state_since=self.now)
        self.rows[machine.id] = machine
        self.wanted += 1

    def turn(self) -> None:
        """Run one pass of the service, which ends early if the service crashes."""
        try:
            self.crash()
            listed = self.list()
            self.crash()
            named = {one.machine_id for one in listed or ()}
            rows = [one for one in self.rows.values() if one.state not in ENDED or one.id in named]
            spare = {one.external_id for one in listed or ()}
            rows += [one for one in self.rows.values() if one not in rows and one.external_id in spare]
            plan = reconcile(rows, listed, self.joined, self.seen, self.now)
            self.rows |= {one.id: one for one in (*plan.changed, *plan.found)}
            self.seen = dict(plan.seen)
            for one in plan.drains:
                self.crash()
                self.joined[one.id] = replace(self.joined[one.id], state=NodeState.DRAINING)
            for one in plan.launches:
                self.step(lambda one=one: self.asked(one))  # type: ignore[misc]
            for termination in plan.terminations:
                self.step(lambda one=termination: self.terminate(one.external_id))  # type: ignore[misc]
        except Lost:
            pass

    def step(self, call: Callable[[], object]) -> None:
        self.crash()
        try:
            call()
        except Lost:
            return

    def asked(self, machine: Machine) -> None:
        answer = self.launch(machine)
        self.crash()
        if isinstance(answer, Found):
            self.rows[machine.id] = launched(machine, answer, self.now)
        else:
            self.rows[machine.id] = not_launched(machine, answer, "no", self.now)

    def give_back_all(self) -> None:
        for one in self.rows.values():
            if one.state not in ENDED | {MachineState.ENDING}:
                self.rows[one.id] = given_back(one, MachineReason.GIVEN_BACK, "the end", self.now)


def storm(rng: random.Random, turns: int, badness: float) -> World:
    world = World(rng, badness)
    for _ in range(turns):
        if rng.random() < 0.4:
            world.want()
        if rng.random() < 0.2 and world.rows:
            one = rng.choice([*world.rows.values()])
            if one.state is MachineState.RUNNING:
                world.rows[one.id] = given_back(one, MachineReason.IDLE, "idle", world.now)
        world.live()
        world.turn()
    world.badness = 0.0
    for _ in range(4):
        world.give_back_all()
        for _ in range(60):
            world.live()
            world.turn()
    return world


def check(world: World) -> None:
    """Check that there is no orphan, and that every machine is on exactly one lease, to the second."""
    assert [one.external_id for one in world.instances.values() if one.ended is None] == []
    assert [one.id for one in world.rows.values() if one.state not in ENDED] == []
    leases = sorted(
        (one.external_id, one.billed_from, one.billed_to) for one in world.rows.values() if one.external_id
    )
    real = sorted((one.external_id, one.began, one.ended) for one in world.instances.values())
    assert leases == real


@pytest.mark.slow
@settings(max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([0.02, 0.1, 0.3]))
def test_nothing_leaks_whatever_goes_wrong(seed: int, badness: float) -> None:
    check(storm(random.Random(seed), 40, badness))


def test_a_thousand_faults_leave_no_orphan_and_no_lease_that_is_billed_twice() -> None:
    world = storm(random.Random(6), 250, 0.15)
    assert world.faults >= 1000
    check(world)
