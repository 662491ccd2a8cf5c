"""A benchmark that is interrupted or killed leaves no process and no folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path

import pytest

from tests.integration.benchmarks.identity import ROOT
from tests.integration.local.footprint import kill_all, processes_of, until

pytestmark = pytest.mark.slow


@contextmanager
def forecast(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The benchmark, from when its first rank runs."""
    env = {**os.environ, "TMPDIR": str(folder)}
    argv = [sys.executable, "-m", "benchmarks.forecast", "--json", "--seconds", "600"]
    with subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.DEVNULL) as process:
        try:
            # Unlike pathlib's, this glob passes over folders that go meanwhile.
            until(
                lambda: process.poll() is not None or glob(f"{folder}/*/agents/*/runs/*/*/rank-0.pid"),  # noqa: PTH207
                "a rank to start",
                within_s=300.0,
            )
            assert process.poll() is None, "it ended before its first job ran"
            yield process
        finally:
            kill_all(folder)


@pytest.mark.timeout(700)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left(tmp_path: Path, number: signal.Signals) -> None:
    with forecast(tmp_path) as process:
        started = processes_of(tmp_path)
        for part in ("postgres", "redis-server", "service api", "worker_agent", "worker_agent.launcher"):
            assert any(part in command for command in started.values()), f"{part} runs: {started}"
        process.send_signal(number)
        assert process.wait(300) == (-number if number is signal.SIGKILL else 128 + number)
        until(lambda: not processes_of(tmp_path), "everything to be gone")
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("headway-benchmark-")] == []
