from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from worker_agent.host.folders import StateFolder, read_json, write_json
from worker_agent.isolation.scratch import (
    ABANDONED_S,
    close_scratch,
    open_scratch,
    remove_abandoned,
    remove_scratch,
    scratch_of,
)

Made = Callable[[str], tuple[StateFolder, Path]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Makes the state folder of an agent, and its folder for temporary files, in `tmp_path / "host"`."""
    host = tmp_path / "host"
    host.mkdir()

    def make(name: str) -> tuple[StateFolder, Path]:
        state = StateFolder(tmp_path / name)
        state.make()
        return state, open_scratch(state, host)

    return make


def later(folder: Path, by_s: float = 2 * ABANDONED_S) -> float:
    return folder.stat().st_mtime + by_s


def test_it_is_kept_over_restarts_and_made_anew_when_the_host_has_tidied_up(made: Made) -> None:
    state, folder = made("state")
    assert folder.name.startswith("headway-")
    assert open_scratch(state, folder.parent) == folder
    shutil.rmtree(folder)
    assert open_scratch(state, folder.parent) != folder
    assert len(list(folder.parent.iterdir())) == 1


def test_an_agent_that_takes_its_jobs_along_leaves_nothing(made: Made) -> None:
    state, folder = made("state")
    job = state.job("j1")
    scratch_of(job, folder).mkdir()
    remove_scratch(job, state)
    assert [one.name for one in folder.iterdir()] == [".owner"]
    close_scratch(state)
    close_scratch(state)
    assert list(folder.parent.iterdir()) == []
    assert not state.scratch.is_symlink()


def test_what_nobody_will_come_back_for_is_removed(made: Made) -> None:
    (_, used), (state, left) = made("stays"), made("goes")
    shutil.rmtree(state.path)
    host = left.parent
    assert remove_abandoned(later(left, ABANDONED_S / 2), host) == [], "its agent may be about to come back"
    assert remove_abandoned(later(left), host) == [left]
    assert list(host.iterdir()) == [used]


def test_what_is_anothers_or_of_another_place_is_left_alone(made: Made, tmp_path: Path) -> None:
    state, there = made("elsewhere")
    shutil.rmtree(state.path)
    owner = {"state": str(state.path), "mounts": "mnt:[1]"}
    assert owner.keys() == (read_json(there / ".owner") or {}).keys()
    write_json(there / ".owner", owner)
    host = there.parent
    (host / "headway-none").mkdir()
    (host / "headway-file").touch()
    (host / "headway-link").symlink_to(tmp_path)
    (host / "headway-broken").mkdir()
    (host / "headway-broken" / ".owner").write_text("{")
    before = sorted(host.iterdir())
    assert remove_abandoned(later(there), host) == []
    assert sorted(host.iterdir()) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_folders_of_other_users_are_not_looked_into(made: Made) -> None:
    state, folder = made("state")
    shutil.rmtree(state.path)
    os.chown(folder, 12345, 12345)
    assert remove_abandoned(later(folder), folder.parent) == []
