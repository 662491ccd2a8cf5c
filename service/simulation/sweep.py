"""Many replays: policies times seeds, side by side in processes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from multiprocessing import get_context
from typing import Any

from service.domain.policies.policy import Policy
from service.simulation.engine import Progress, replay
from service.simulation.world import BadInput, Replay, World


class Engine(StrEnum):
    """What runs the replays of a sweep. `joblib` and `ray` must be installed; with Ray a sweep may use many machines."""

    PROCESSES = "processes"
    JOBLIB = "joblib"
    RAY = "ray"


@dataclass(frozen=True, slots=True)
class Point:
    """A replay of a sweep: what a policy is called there, and a seed."""

    policy: str
    seed: int


def sweep(
    world: World,
    policies: Mapping[str, Policy],
    seeds: Sequence[int],
    *,
    parallel: int = 1,
    engine: Engine = Engine.PROCESSES,
    on_progress: Progress | None = None,
) -> Iterator[tuple[Point, Replay]]:
    """Every policy, by what it is called, with every seed: one after the other in this order, whichever is done first.

    With `parallel` 1, in this process. `on_progress` is told the share of everything that is done; what it raises ends
    the sweep. Raises BadInput for an engine that is not installed.
    """
    points = [Point(name, seed) for name in policies for seed in seeds]
    work = [(replace(world, seed=point.seed), policies[point.policy]) for point in points]
    if parallel <= 1:
        for done, (point, (scene, policy)) in enumerate(zip(points, work, strict=True)):
            yield point, replay(scene, policy, on_progress=_part(on_progress, done, len(points)))
        return
    with _RUNNERS[engine](min(parallel, len(points))) as run:
        for done, (point, found) in enumerate(zip(points, run(work), strict=True), start=1):
            if on_progress is not None:
                on_progress(done / len(points))
            yield point, found


def _part(tell: Progress | None, done: int, points: int) -> Progress | None:
    """Tells of the whole what is told of one replay."""
    return None if tell is None else lambda share: tell((done + share) / points)


_Work = tuple[World, Policy]
_Run = Callable[[Sequence[_Work]], Iterator[Replay]]


def _one(work: _Work) -> Replay:
    return replay(*work)


@contextmanager
def _processes(parallel: int) -> Iterator[_Run]:
    pool = ProcessPoolExecutor(parallel, mp_context=get_context("spawn"))
    try:
        yield lambda work: pool.map(_one, work)
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _joblib(parallel: int) -> Iterator[_Run]:
    joblib = _module("joblib")
    jobs = joblib.Parallel(n_jobs=parallel, return_as="generator")
    yield lambda work: jobs(joblib.delayed(_one)(one) for one in work)


@contextmanager
def _ray(parallel: int) -> Iterator[_Run]:
    ray = _module("ray")
    ours = not ray.is_initialized()
    if ours:
        ray.init(num_cpus=None if os.environ.get("RAY_ADDRESS") else parallel)
    remote = ray.remote(_one)
    try:
        yield lambda work: map(ray.get, [remote.remote(one) for one in work])
    finally:
        if ours:
            ray.shutdown()


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadInput(f"{name} is not installed; install it, or choose {Engine.PROCESSES}") from error


_RUNNERS = {Engine.PROCESSES: _processes, Engine.JOBLIB: _joblib, Engine.RAY: _ray}
