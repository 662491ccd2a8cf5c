"""An agent finds its runs in its folder after a restart, and removes the rest."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.worker_agent.runs.test_environment import command
from worker_agent.host.folders import StateFolder, read_json, write_json
from worker_agent.runs import records
from worker_agent.runs.reconcile import Fence, Phase


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    folder = StateFolder(tmp_path / "state")
    folder.make()
    return folder


def test_a_run_is_found_again_as_it_was(state: StateFolder) -> None:
    run = records.new_run(state, command(live=True, joins=True))
    assert (run.state.live, run.state.joins, run.state.slots) == (True, True, {0, 2})
    run.state = replace(run.state, terminate=True, kill_at_s=12.5, terminated=True, slots=frozenset({0}))
    run.exits_reported.add(4)
    run.completed.add(4)
    run.left.add(5)
    run.start_reported = run.library = True
    run.release_as = 9
    run.save()
    write_json(run.folder.started, {"how": "zygote"})
    [found] = records.load_runs(state)
    assert found.state == replace(run.state, phase=Phase.LIVE)
    assert (found.command, found.exits_reported, found.completed) == (run.command, {4}, {4})
    assert found.left == {5}
    assert (found.start_reported, found.library, found.release_as) == (True, True, 9)


def test_the_phase_follows_from_what_the_launcher_wrote(state: StateFolder) -> None:
    run = records.new_run(state, command())
    assert records.load_runs(state)[0].state.phase is Phase.PREPARING
    write_json(run.folder.started, {"how": "spawn"})
    assert records.load_runs(state)[0].state.phase is Phase.LIVE
    write_json(run.folder.gone, {})
    assert records.load_runs(state)[0].state.phase is Phase.GONE
    run.folder.ended.touch()
    assert records.load_runs(state) == []


def test_a_damaged_run_does_not_keep_the_agent_from_starting(state: StateFolder) -> None:
    run = records.new_run(state, command())
    run.folder.command.write_text("{}")
    assert records.load_runs(state) == []


def test_fences_outlive_everything(state: StateFolder) -> None:
    job = state.job("job")
    assert records.read_fence(job) == Fence()
    records.write_fence(job, Fence(run=3, stop=2))
    assert records.read_fence(job) == Fence(run=3, stop=2)


def test_unshipped_logs_are_found_again(state: StateFolder) -> None:
    run = records.new_run(state, command())
    run.folder.log(4).touch()
    assert records.unshipped_logs(state) == []
    run.folder.ended.touch()
    [logged] = records.unshipped_logs(state)
    assert (logged.folder.name, logged.ranks) == ("job/7", (4,))
    run.folder.shipped.touch()
    assert records.unshipped_logs(state) == []


def _age(path: Path, seconds: float) -> None:
    changed = path.stat().st_mtime - seconds
    os.utime(path, (changed, changed))


def test_only_the_last_generations_are_kept(state: StateFolder) -> None:
    for generation in range(1, 7):
        folder = records.new_run(state, command(generation=generation)).folder
        folder.ended.touch()
        if generation != 2:
            folder.shipped.touch()
    records.tidy(state, (state.job("job").run(6).ended).stat().st_mtime)
    assert [folder.path.name for folder in state.job("job").runs()] == ["2", "4", "5", "6"]


def test_old_jobs_go_and_their_fence_last(state: StateFolder) -> None:
    folder = records.new_run(state, command()).folder
    job = state.job("job")
    records.write_fence(job, Fence(run=7))
    job.work.mkdir()
    for marker in (folder.ended, folder.shipped):
        marker.touch()
    now_s = job.fence.stat().st_mtime
    _age(folder.ended, records.KEEP_FOLDERS_S + 1)
    records.tidy(state, now_s)
    assert not folder.path.exists()
    assert job.work.exists()
    records.tidy(state, now_s + records.KEEP_FOLDERS_S + 1)
    assert not job.work.exists()
    assert records.read_fence(job) == Fence(run=7)
    records.tidy(state, now_s + records.KEEP_FENCE_S + 1)
    assert state.jobs() == []


def test_an_unfinished_run_is_never_thrown_away(state: StateFolder) -> None:
    run = records.new_run(state, command())
    records.tidy(state, run.folder.command.stat().st_mtime + 10 * records.KEEP_FENCE_S)
    assert run.folder.command.exists()


@pytest.mark.parametrize("job_id", ["", "..", "a/b", "../../etc", ".hidden", "a" * 200])
def test_an_id_that_is_no_folder_name_is_refused(state: StateFolder, job_id: str) -> None:
    with pytest.raises(ValueError, match="not a valid job id"):
        state.job(job_id)


def test_json_files_appear_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert read_json(path) is None
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert read_json(path) == {"a": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_what_crashes_and_long_lives_leave_goes(state: StateFolder) -> None:
    now_s = 1e9
    old, young = state.bundles / ".a.tar.gz.12.tmp", state.bundles / ".b.tar.gz.34.tmp"
    half = state.job("job").run(1)  # its agent ended before the command was on disk
    half.path.mkdir(parents=True)
    for path, age_s in ((old, 7 * 3600), (young, 60), (half.path, 7 * 3600)):
        if path is not half.path:
            path.write_bytes(b"x")
        os.utime(path, (now_s - age_s, now_s - age_s))
    with state.launcher_log.open("ab", buffering=0) as launcher:
        launcher.write(b"x" * (2 << 20))
        records.tidy(state, now_s)
        launcher.write(b"goes on\n")
    assert (old.exists(), young.exists(), half.path.exists()) == (False, True, False)
    assert state.launcher_log.read_bytes() == b"goes on\n"
    assert state.launcher_log.with_name("launcher.log.1").stat().st_size == 2 << 20


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_json(tmp_path / "taken", {})
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_halves_of_files_go_when_they_are_old(state: StateFolder) -> None:
    run = records.new_run(state, command())
    halves = [folder / ".some.json.1.tmp" for folder in (state.path, state.job("job").path, run.folder.path)]
    for half in halves:
        half.write_text("{")
    now_s = halves[0].stat().st_mtime
    records.tidy(state, now_s)
    assert all(half.exists() for half in halves)
    records.tidy(state, now_s + records.KEEP_FOLDERS_S + 60)
    assert not any(half.exists() for half in halves)


def test_a_bundle_that_is_moved_while_the_agent_tidies(state: StateFolder) -> None:
    """The name is listed, but `stat` does not find it: a link to nowhere answers like a renamed folder."""
    job = state.job("job")
    job.path.mkdir()
    (job.path / "work-1.partial").symlink_to(job.path / "work")
    records.tidy(state, 1e9)
    assert job.path.exists()
