"""One whole Headway for the end-to-end tests: stores, service, two agents with two slots each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from headway.client import Client
from headway.local.stack import LocalStack

PATIENCE_S = 60.0


@dataclass
class Cluster:
    """The running stack, and what tests do with it."""

    stack: LocalStack
    client: Client

    def headway(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line as a user does."""
        env = {**os.environ, "HEADWAY_URL": self.stack.url, "HEADWAY_TOKEN": self.stack.token}
        command = [sys.executable, "-m", "headway.cli", *arguments]
        return subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S
        )

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, with an end, for what other processes do."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                states = {job.name: (job.state, job.message) for job in self.client.jobs()}
                pytest.fail(f"waited {PATIENCE_S:.0f} s for {what}; jobs: {states}")
            time.sleep(0.05)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shared by all end-to-end tests: each uses job names of its own and leaves no job behind."""
    data = tmp_path_factory.mktemp("cluster")
    with LocalStack(data, agents=2, slots=2) as stack, stack.client() as client:
        yield Cluster(stack, client)
