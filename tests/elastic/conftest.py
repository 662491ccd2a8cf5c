"""Jobs of real processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.elastic.harness import SCRIPTS, Job
from tests.elastic.ranks import ENV_COLLECTIVE


@pytest.fixture
def collective() -> str | None:
    """Name of the collective backend of ranks on CPUs whose script names none."""
    return os.environ.get(ENV_COLLECTIVE)


@pytest.fixture
def job(tmp_path: Path, collective: str | None) -> Iterator[Callable[..., Job]]:
    """Makes a job of a script in `scripts/` (or of any path) and its arguments."""
    jobs: list[Job] = []

    def make(script: str | Path, *arguments: object, **env: str) -> Job:
        folder = tmp_path / f"job-{len(jobs)}"
        folder.mkdir()
        if collective is not None:
            env[ENV_COLLECTIVE] = collective
        jobs.append(Job(folder, SCRIPTS / script, [str(argument) for argument in arguments], env))
        return jobs[-1]

    yield make
    for one in jobs:
        one.end()
