"""Sweeps of many replays, policies times seeds, in parallel processes."""

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

from service.domain.policies.framework.policy import Policy
from service.simulation.model.world import BadInput, Replay, World
from service.simulation.replay.engine import Progress, replay


class Engine(StrEnum):
    """Runner of the replays of a sweep. `joblib` and `ray` must be installed. Ray can use many machines."""

    PROCESSES = "processes"
    JOBLIB = "joblib"
    RAY = "ray"


@dataclass(frozen=True, slots=True)
class Point:
    """Replay of a sweep: the name of a policy in the sweep, and a seed."""

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
    """Yield the replay of every named policy with every seed, in this order, whichever finishes first.

    With `parallel` 1, the replays run in this process. `on_progress` receives the share of all work that is
    done. An exception from it ends the sweep. Raise BadInput for an engine that is not installed.
    """
    points = [Point(name, seed) for name in policies for seed in seeds]
    work = [(replace(world, seed=point.seed), policies[point.policy]) for point in points]
    if parallel <= 1:
        for done, (point, (scene, policy)) in enumerate(zip(points, work, strict=True)):
            yield point, replay(scene, policy, on_progress=_scaled(on_progress, done, len(points)))
        return
    with _RUNNERS[engine](min(parallel, len(points))) as run:
        for done, (point, found) in enumerate(zip(points, run(work), strict=True), start=1):
            if on_progress is not None:
                on_progress(done / len(points))
            yield point, found


def _scaled(on_progress: Progress | None, done: int, points: int) -> Progress | None:
    """Return a callback that converts the progress of one replay into the progress of the sweep."""
    return None if on_progress is None else lambda share: on_progress((done + share) / points)


_Work = tuple[World, Policy]
_Run = Callable[[Sequence[_Work]], Iterator[Replay]]


def _replay_one(work: _Work) -> Replay:
    return replay(*work)


@contextmanager
def _processes(parallel: int) -> Iterator[_Run]:
    pool = ProcessPoolExecutor(parallel, mp_context=get_context("spawn"))
    try:
        yield lambda work: pool.map(_replay_one, work)
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _joblib(parallel: int) -> Iterator[_Run]:
    joblib = _module("joblib")
    jobs = joblib.Parallel(n_jobs=parallel, return_as="generator")
    yield lambda work: jobs(joblib.delayed(_replay_one)(one) for one in work)


@contextmanager
def _ray(parallel: int) -> Iterator[_Run]:
    ray = _module("ray")
    ours = not ray.is_initialized()
    if ours:
        ray.init(num_cpus=None if os.environ.get("RAY_ADDRESS") else parallel)
    remote = ray.remote(_replay_one)
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
