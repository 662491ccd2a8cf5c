"""Conditions under which an agent does not take ranks to hang."""

from __future__ import annotations

from pathlib import Path

from worker_agent.runs.watching import disk_is_full


def test_a_disk_without_room_is_full(tmp_path: Path) -> None:
    assert disk_is_full(Path("/proc")), "a file system that stores nothing"
    assert not disk_is_full(tmp_path)
