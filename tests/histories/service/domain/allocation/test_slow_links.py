"""Rounds in virtual time with a link that loses its bandwidth and recovers: who moves, when, and how often."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from headway.contract.values.topology import crossed_level, placed_labels
from service.domain.allocation.decision.plan import Action, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Measurement, Node, Snapshot
from service.domain.nodes.slow_links import LinkRate, judged
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import NOW, node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job

HOSTS = ("n0", "n1", "n2", "n3")
USUAL = 1.25e8
ROUND_S, PROBED_S = 10.0, 120.0
SLOW_FROM_S, SLOW_UNTIL_S, END_S = 600.0, 1500.0, 2400.0
SLOW = "n1"


@dataclass
class History:
    """A job of three slots on hosts of one slot. Behind the slow link it has `share` of its usual speed."""

    share: float
    dice: random.Random
    on: tuple[str, ...] = ("n0", "n1", "n2")
    marks: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, datetime] = field(default_factory=dict)
    steps: dict[str, tuple[int, float]] = field(default_factory=lambda: {"": (0, 0.0)})
    """Steps and their seconds, by the level that they crossed."""
    moves: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)

    def play(self) -> History:
        now_s = 0.0
        while now_s < END_S:
            slow = SLOW_FROM_S <= now_s < SLOW_UNTIL_S
            if now_s % PROBED_S == 0:
                self._probe(NOW + timedelta(seconds=now_s), slow=slow)
            self._train(slow=slow)
            self._round(now_s)
            now_s += ROUND_S
        return self

    def _probe(self, now: datetime, *, slow: bool) -> None:
        rates = [
            LinkRate(
                one, other, self.dice.uniform(0.6, 1.0) * USUAL * (0.1 if slow and one == SLOW else 1.0), now
            )
            for one in HOSTS
            for other in HOSTS
            if one != other
        ]
        found = judged(rates, dict.fromkeys(HOSTS, "cpu"), self.marks, self.doubts)
        self.marks = {name: link.sentence(name) for name, link in found.slow.items()}
        self.doubts = {name: self.doubts.get(name, now) for name in found.doubted}

    def _nodes(self) -> dict[str, Node]:
        said = {name: self.marks.get(name, "") for name in HOSTS}
        return {
            name: node_of(name, 1, labels=placed_labels({}, name, said[name]), slow_link=said[name])
            for name in HOSTS
        }

    def _train(self, *, slow: bool) -> None:
        step_s = 0.4 / (self.share if slow and SLOW in self.on else 1.0) * self.dice.uniform(0.95, 1.05)
        crossed = crossed_level(self._nodes()[name].labels for name in self.on)
        count, seconds = self.steps.get(crossed, (0, 0.0))
        more = int(ROUND_S / step_s)
        self.steps[crossed] = count + more, seconds + more * step_s

    def _round(self, now_s: float) -> None:
        measured = [Measurement("cpu", 1, 100.0, 5000, global_batch=96, local_batch=96)]
        measured += [
            Measurement(
                "cpu",
                3,
                96 * count / seconds,
                count,
                nodes=3,
                global_batch=96,
                local_batch=32,
                step_s=seconds / count,
                crossed=crossed,
            )
            for crossed, (count, seconds) in self.steps.items()
            if count
        ]
        job = elastic_job(state=RUNNING, low=3, high=3, live=True)
        held = {"j": [(name, 0) for name in self.on]}
        snapshot: Snapshot = replace(
            snapshot_of(self._nodes().values(), [job], held, {"j": tuple(measured)}),
            now=NOW + timedelta(seconds=now_s),
        )
        (decision,) = decide(build_round(snapshot), Goodput(), solve).decisions
        if decision.action is Action.CHANGE:
            self.on = tuple(decision.allocation)
            self.moves.append((now_s, self.on))


@pytest.mark.parametrize("seed", range(2))
def test_a_job_that_loses_speed_moves_once_off_the_slow_host_and_stays_there(seed: int) -> None:
    history = History(0.2, random.Random(seed)).play()
    ((at_s, on),) = history.moves
    assert SLOW_FROM_S + PROBED_S <= at_s <= SLOW_FROM_S + 2 * PROBED_S + 6 * ROUND_S
    assert on == ("n0", "n2", "n3")
    assert history.marks == {}, "the link is well again"


@pytest.mark.parametrize("seed", range(2))
def test_a_job_that_loses_nothing_never_moves(seed: int) -> None:
    assert History(0.97, random.Random(seed)).play().moves == []
