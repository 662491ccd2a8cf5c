"""Disk space is given back while a file is written."""

from __future__ import annotations

from pathlib import Path

from worker_agent.logs.punch_hole import Holes

MIB = 1 << 20


def test_what_was_read_takes_no_space_and_the_rest_is_as_it_was(tmp_path: Path) -> None:
    path, holes = tmp_path / "file", Holes(step_bytes=MIB)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"x" * (4 * MIB))
        holes.empty(str(path), 3 * MIB + 5)
        writer.write(b"the end")
    assert path.stat().st_size == 4 * MIB + 7
    assert path.stat().st_blocks * 512 <= MIB + 65536
    data = path.read_bytes()
    assert data[3 * MIB :] == b"x" * MIB + b"the end"
    assert not any(data[: 3 * MIB])


def test_little_is_left_for_another_time(tmp_path: Path) -> None:
    path, holes = tmp_path / "file", Holes(step_bytes=MIB)
    path.write_bytes(b"x" * (2 * MIB))
    holes.empty(str(path), MIB - 1)
    holes.empty(str(path), -5)
    assert path.read_bytes() == b"x" * (2 * MIB)
    holes.empty(str(path), MIB)
    assert path.read_bytes() == bytes(MIB) + b"x" * MIB
