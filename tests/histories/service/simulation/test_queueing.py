"""Tests against queueing theory: a world without noise and elasticity is a textbook queue."""

from __future__ import annotations

import math

import numpy as np
import pytest

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.registry import policy
from service.domain.shared.arrays import FloatArray
from service.simulation.model.clusters import configurations_of
from service.simulation.model.world import Application, Arrival, ClusterRules, Kind, View, World
from service.simulation.replay.engine import replay
from tests.unit.service.simulation.scenes import scripted

SERVERS = 3
SEED = 2
"""Seed of the submissions. With 2,000 jobs, the mean still has a random error of some percent."""


def queue(submits_s: FloatArray, works_s: FloatArray) -> World:
    """Return a world of one-slot jobs on several slots, with free starts and rounds on events."""
    kinds = (Kind(name="server", node_slots=(SERVERS,)),)
    configurations = configurations_of(kinds)
    application = Application(
        name="job",
        boundaries=np.array([0.0, 1.0]),
        goodput=configurations.slots[None, :].astype(np.float64),
        restart_s=0.0,
    )
    arrivals = tuple(
        Arrival(id=f"job-{index}", submit_s=submit_s, application=0, max_slots=1, work=work_s)
        for index, (submit_s, work_s) in enumerate(zip(submits_s.tolist(), works_s.tolist(), strict=True))
    )
    rules = ClusterRules(interval_s=1e9, on_events=True, view=View.ORACLE)
    return World(
        kinds=kinds,
        configurations=configurations,
        applications=(application,),
        arrivals=arrivals,
        rules=rules,
    )


def poisson(jobs: int, load: float, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return submission times, and works of 1 s on average, for this load of all servers."""
    random = np.random.default_rng(seed)
    return np.cumsum(random.exponential(1.0 / (load * SERVERS), jobs)), random.exponential(1.0, jobs)


def first_come(given: RoundInput) -> list[int]:
    """Keep running jobs, then start the oldest."""
    chosen = given.current.copy()
    waiting = np.flatnonzero(chosen == NOTHING)
    chosen[waiting[: SERVERS - (len(chosen) - len(waiting))]] = 0
    return [int(column) for column in chosen]


def lindley_waits_s(submits_s: FloatArray, works_s: FloatArray) -> FloatArray:
    """Return waiting times by the recursion of Kiefer and Wolfowitz (1955): each job takes the server that is
    free first.
    """
    free_s, waits_s = np.zeros(SERVERS), np.zeros(len(submits_s))
    for index, (submit_s, work_s) in enumerate(zip(submits_s, works_s, strict=True)):
        first = int(free_s.argmin())
        start_s = max(free_s[first], submit_s)
        waits_s[index], free_s[first] = start_s - submit_s, start_s + work_s
    return waits_s


def erlang_c_wait_s(load: float) -> float:
    """Return the mean wait of M/M/k with works of 1 s: the probability of waiting (Erlang C) over the spare capacity."""
    offered = load * SERVERS
    waiting = offered**SERVERS / math.factorial(SERVERS) / (1 - load)
    waits = waiting / (sum(offered**count / math.factorial(count) for count in range(SERVERS)) + waiting)
    return waits / (SERVERS * (1 - load))


def test_every_wait_is_that_of_the_recursion() -> None:
    submits_s, works_s = poisson(150, 0.9, seed=1)
    found = replay(queue(submits_s, works_s), policy("fifo"))
    waits_s = found.jobs.start_s - found.jobs.submit_s
    assert waits_s == pytest.approx(lindley_waits_s(submits_s, works_s), abs=1e-9)


@pytest.mark.slow
def test_the_mean_wait_is_that_of_erlang() -> None:
    submits_s, works_s = poisson(2000, 0.7, seed=SEED)
    found, _ = scripted(queue(submits_s, works_s), first_come)
    waits_s = found.jobs.start_s - found.jobs.submit_s
    assert waits_s.mean() == pytest.approx(erlang_c_wait_s(0.7), rel=0.05)
    assert found.jobs.served_slot_s == pytest.approx(works_s)
