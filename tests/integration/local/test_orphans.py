"""Processes that an ended database left behind, found by their working folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headway.local.postgres import orphans_remedy, processes_in


def test_processes_of_a_folder_are_found_by_where_they_work(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    beside = tmp_path / "cluster-of-another"
    code = "print(flush=True); input()"
    started = []
    for one in (folder, beside):
        one.mkdir()
        child = subprocess.Popen(
            [sys.executable, "-c", code], cwd=one, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        started.append(child)
    try:
        assert processes_in(folder) == [started[0].pid]
        assert f"`kill {started[0].pid}`" in orphans_remedy(folder)
    finally:
        for child in started:
            child.communicate(b"\n", timeout=60)
    assert processes_in(folder) == []
    assert os.getpid() in processes_in(Path.cwd())
