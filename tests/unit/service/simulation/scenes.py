"""Small worlds and scripted policies for the tests of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Solution
from service.domain.policies.framework.policy import Choices, RoundInput
from service.simulation.model.clusters import configurations_of
from service.simulation.model.world import Application, Arrival, ClusterRules, Kind, Replay, View, World
from service.simulation.replay.engine import replay

KINDS = (Kind(name="slow", node_slots=(2, 2)), Kind(name="fast", node_slots=(4,), usd_per_slot_h=3.0))
CONFIGURATIONS = configurations_of(KINDS)
"""Columns of 1, 2 and 4 slots on slow nodes (4 on two of them), then 1 to 4 on the fast node."""
STEADY = Application(
    name="steady",
    boundaries=np.array([0.0, 100.0, 400.0]),
    goodput=np.tile(CONFIGURATIONS.slots * 1.0, (2, 1)),
    restart_s=7.0,
)
"""Application with a sample per second and slot, 400 samples, and restarts of 7 s."""
SPEEDING = Application(
    name="speeding",
    boundaries=np.array([0.0, 60.0, 360.0]),
    goodput=np.outer([1.0, 3.0], CONFIGURATIONS.slots),
    restart_s=5.0,
)
"""Application that is three times as fast in its second phase."""
EVERY_MINUTE = ClusterRules(view=View.ORACLE)

Decide = Callable[[RoundInput], Sequence[int]]


@dataclass
class Scripted:
    """Policy that follows a function, and records its inputs and choices."""

    decide: Decide
    rounds: list[tuple[RoundInput, list[int]]] = field(default_factory=list)
    name: str = "scripted"

    def choose(self, given: RoundInput, solve: object) -> Choices:
        chosen = np.array(self.decide(given), dtype=np.int64)
        self.rounds.append((given, chosen.tolist()))
        prices = np.zeros(len(given.rows))
        solution = Solution(chosen=chosen, objective=0.0, bound=0.0, prices=prices, status="optimal")
        return Choices(
            chosen=chosen,
            utility=np.zeros(given.goodput.shape),
            idle=np.zeros(len(chosen)),
            unit="none",
            solution=solution,
        )


def no_solver(problem: Problem) -> Solution:
    raise AssertionError("scripted policies need none")


def world(*jobs: tuple[float, Application], rules: ClusterRules = EVERY_MINUTE, seed: int = 0) -> World:
    """Return a world with jobs of these applications, submitted at these times, on the cluster of `KINDS`."""
    applications = (STEADY, SPEEDING)
    arrivals = tuple(
        Arrival(id=f"job-{index}", submit_s=at_s, application=applications.index(application))
        for index, (at_s, application) in enumerate(jobs)
    )
    return World(
        kinds=KINDS,
        configurations=CONFIGURATIONS,
        applications=applications,
        arrivals=arrivals,
        rules=rules,
        seed=seed,
    )


def scripted(scene: World, decide: Decide) -> tuple[Replay, Scripted]:
    """Return the replay of a scene in which a function decides."""
    policy = Scripted(decide)
    return replay(scene, policy, solve=no_solver, clock=lambda: 0.0), policy


def everyone_gets(column: int) -> Decide:
    return lambda given: [column] * len(given.current)


def anything_that_fits(seed: int) -> Decide:
    """Return a function that makes random feasible choices, different in every round."""
    random = np.random.default_rng(seed)

    def decide(given: RoundInput) -> list[int]:
        chosen = np.full(len(given.current), NOTHING)
        for job in random.permutation(len(chosen)):
            column = int(random.integers(-1, len(given.configurations.slots)))
            if column != NOTHING and not given.allowed[job, column]:
                continue
            trial = chosen.copy()
            trial[job] = column
            has = trial[trial != NOTHING]
            if all(row.demand[has].sum() <= row.capacity for row in given.rows):
                chosen = trial
        return chosen.tolist()

    return decide
