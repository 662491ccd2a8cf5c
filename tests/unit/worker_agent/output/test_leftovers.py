"""Files that a job leaves outside of its folders are named, and those of others are not."""

from __future__ import annotations

import os
from pathlib import Path

from worker_agent.launcher.leftovers import remove_memory
from worker_agent.output.places import left_by


def test_entries_of_a_user_in_temporary_folders_are_those_since_the_start(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    now_s = (tmp_path / "new").stat().st_ctime
    folders = [tmp_path, tmp_path / "nowhere"]
    assert left_by(os.geteuid(), now_s, folders) == [str(tmp_path / "new")]
    assert left_by(os.geteuid(), now_s + 1, folders) == []
    assert left_by(os.geteuid() + 1, 0.0, folders) == []


def test_memory_of_a_user_with_a_process_stays(tmp_path: Path) -> None:
    (tmp_path / "segment").touch()
    assert remove_memory(os.geteuid(), tmp_path) == 0
    assert (tmp_path / "segment").exists()
