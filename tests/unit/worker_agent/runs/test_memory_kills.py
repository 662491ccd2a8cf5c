"""Kills for want of memory, as the kernel counts them, and the ends of ranks that may be some of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker_agent.runs.memory_kills import MemoryKills, counter


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    ("groups", "path", "text"),
    [
        ("0::/user/job\n", "sys/fs/cgroup/user/job/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("0::/\n", "sys/fs/cgroup/memory.events", "oom 3\noom_kill 2\n"),
        (
            "5:cpu:/x\n4:memory:/a/b\n0::/\n",
            "sys/fs/cgroup/memory/a/b/memory.oom_control",
            "under_oom 0\noom_kill 2\n",
        ),
        ("4:memory:/hidden\n", "proc/vmstat", "nr_free_pages 7\noom_kill 2\n"),
        ("", "proc/vmstat", "oom_kill 2\n"),
    ],
)
def test_the_nearest_count_is_taken(tmp_path: Path, groups: str, path: str, text: str) -> None:
    put(tmp_path, "proc/vmstat", "oom_kill 99\n")
    put(tmp_path, "proc/self/cgroup", groups)
    put(tmp_path, path, text)
    assert counter(tmp_path)() == 2


def test_a_host_that_counts_nothing_has_killed_nothing(tmp_path: Path) -> None:
    kills = MemoryKills(counter(tmp_path))
    assert not kills.just_happened(1.0)


def test_only_a_rise_counts_and_only_for_a_moment() -> None:
    counts = [5]
    kills = MemoryKills(lambda: counts[0])
    assert not kills.just_happened(10.0)
    counts[0] = 6
    assert kills.just_happened(11.0)
    assert kills.just_happened(12.0), "a second rank was killed for the same lack"
    assert not kills.just_happened(20.0)
