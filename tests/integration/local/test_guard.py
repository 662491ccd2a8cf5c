"""A starter that is killed leaves nothing of its own, and everything of others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.local.processes import birth
from tests.integration.local.footprint import kill_all, processes_of, until

STARTER = """
import subprocess, sys
from pathlib import Path
from headway.local.guard import Guard
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
beside = Path(sys.argv[1])
with Guard() as guard, guard.temporary_folder() as folder:
    guard.watch(beside)
    started = [
        subprocess.Popen(sleep, start_new_session=True),
        subprocess.Popen(sleep, start_new_session=True, env={}, cwd=folder),
        subprocess.Popen([*sleep, str(folder / "state")], start_new_session=True, env={}),
        subprocess.Popen(sleep, start_new_session=True, env={}, cwd=beside),
    ]
    print(folder, *(one.pid for one in started), flush=True)
    sys.stdin.read()
    for one in started:
        one.kill()
        one.wait()
"""


@dataclass
class Started:
    """A starter, its folder and its children."""

    process: subprocess.Popen[str]
    folder: Path
    children: list[int]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    (tmp_path / "watched").mkdir()
    argv = [sys.executable, "-c", STARTER, str(tmp_path / "watched")]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder, *children = process.stdout.readline().split()
        yield Started(process, Path(folder), [int(pid) for pid in children])
        process.kill()
    kill_all(tmp_path)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if birth(pid) is not None]


def test_a_killed_starter_takes_everything_along(started: Started, tmp_path: Path) -> None:
    namesake = tmp_path / "watched-too"
    namesake.mkdir()
    stranger = subprocess.Popen(["sleep", "600"], cwd=namesake, env={})
    assert len(alive(started.children)) == 4
    try:
        started.process.kill()
        until(lambda: not alive(started.children), "all children to be gone")
        until(lambda: not started.folder.exists(), "the temporary folder to be gone")
        assert (tmp_path / "watched").exists()
        assert stranger.poll() is None, "the name of its folder only begins like that"
    finally:
        stranger.kill()
        stranger.wait()


def test_a_starter_that_ends_by_itself_leaves_no_guard(started: Started, tmp_path: Path) -> None:
    started.process.communicate("")
    assert started.process.returncode == 0
    assert not started.folder.exists()
    until(lambda: not processes_of(tmp_path), "the guard to be gone")


def test_the_guard_of_an_inner_starter_outlives_the_outer_ones_end(started: Started) -> None:
    """The starter carries the mark of these tests; a guard that did as well would be killed before its work is done."""

    def guards_of_it() -> list[int]:
        pids = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
        return [pid for pid in pids if f"\0{started.process.pid}\0".encode() in _read(pid, "cmdline")]

    until(guards_of_it, "the guard's command line: the kernel shows it a moment after the start")
    guards = guards_of_it()
    assert len(guards) == 1
    assert b"HEADWAY_GUARD=" not in _read(guards[0], "environ")
    os.kill(guards[0], signal.SIGTERM)
    assert alive(guards), "it ends with its starter only"


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
