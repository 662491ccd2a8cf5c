"""The probe before an agent takes jobs, by real processes: what it lets pass, and what it finds."""

from __future__ import annotations

import contextlib
import os
from dataclasses import fields
from pathlib import Path

import pytest

from headway.contract.agents import RunCommand, SlotInfo
from headway.contract.isolation import PROBE_KINDS
from worker_agent.host.folders import RunFolder, StateFolder, write_json
from worker_agent.isolation import code_folders
from worker_agent.isolation.code_folders import interpreter_folders, misplaced
from worker_agent.isolation.confined import run_confined
from worker_agent.isolation.modes import Isolation, Kind, UserIds, choose
from worker_agent.isolation.scratch import close_scratch
from worker_agent.isolation.self_check import mark_withheld, run_self_check
from worker_agent.launcher import landlock
from worker_agent.launcher.confinement import Confinement
from worker_agent.runs.environment import base_env

PACKAGES = Path(code_folders.__file__).resolve().parents[2]
needs_landlock = pytest.mark.skipif(landlock.version() == 0, reason="the kernel has no Landlock")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give jobs users of their own")


class Leaky(Isolation):
    """Keeps from jobs what lies beside the agent's folder, and nothing in it: as a mistake in the rules would."""

    def confinement(self, command: RunCommand, folder: RunFolder) -> Confinement:
        beside = self.state.path.parent / "beside"
        return Confinement(private=(str(beside),))


class Deaf(Isolation):
    """Leaves jobs not even their own folder."""

    def confinement(self, command: RunCommand, folder: RunFolder) -> Confinement:
        code = tuple(str(one) for one in interpreter_folders(self.closed))
        return Confinement(private=tuple(str(one) for one in self.closed), code=code)


def state_in(folder: Path) -> StateFolder:
    state = StateFolder(folder / "state")
    state.make()
    write_json(state.credentials, {"node_token": "mine"})
    (folder / "beside").mkdir()
    return state


def chosen(kind: Kind, state: StateFolder, *private: Path) -> Isolation:
    return choose(kind, state, base_env(os.environ, ()), UserIds(), None, private)


def of_kind(kind: type[Isolation], like: Isolation) -> Isolation:
    return kind(**{one.name: getattr(like, one.name) for one in fields(like)})


@pytest.mark.parametrize(
    "kind",
    [pytest.param("users", marks=needs_root), pytest.param("landlock", marks=needs_landlock), "none"],
)
def test_a_host_that_keeps_jobs_apart_passes_and_nothing_is_left(tmp_path: Path, kind: Kind) -> None:
    state = state_in(tmp_path)
    before = {path for path in state.path.rglob("*") if path != state.scratch}
    isolation = run_self_check(chosen(kind, state))
    assert isolation.broken == ""
    assert {path for path in state.path.rglob("*") if path != state.scratch} == before
    close_scratch(state)


@needs_landlock
def test_what_a_job_could_reach_is_named(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    broken = run_self_check(of_kind(Leaky, chosen("landlock", state))).broken
    assert f"read {state.credentials}" in broken
    assert "jobs are not kept apart by landlock" in broken
    slots = mark_withheld(
        [SlotInfo(index=0, device_kind="cpu")], run_self_check(of_kind(Leaky, chosen("landlock", state)))
    )
    assert slots[0].withheld == broken
    assert not list(state.runs.iterdir())
    close_scratch(state)


@needs_landlock
def test_jobs_without_their_own_folder_are_none(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    assert "cannot write to its own folder" in run_self_check(of_kind(Deaf, chosen("landlock", state))).broken
    close_scratch(state)


@needs_landlock
def test_tokens_of_the_user_are_looked_for(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    admin = tmp_path / "admin"
    admin.mkdir()
    (admin / "admin-token").write_text("hwy")
    assert run_self_check(chosen("landlock", state, admin)).broken == ""
    assert (
        f"read {admin}/admin-token" in run_self_check(of_kind(Leaky, chosen("landlock", state, admin))).broken
    )
    close_scratch(state)


@needs_landlock
def test_an_interpreter_in_a_private_folder_is_told_of(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    broken = run_self_check(chosen("landlock", state, PACKAGES)).broken
    assert str(PACKAGES) in broken
    assert "Install it elsewhere" in broken
    close_scratch(state)


@needs_landlock
def test_a_folder_that_would_open_a_private_one_is_refused_by_the_rules_themselves(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    for opened in ({"code": (str(tmp_path),)}, {"own": ("/",)}, {"written": (str(private),)}):
        code, said = run_confined(Confinement(private=(str(private),), **opened), ["/bin/true"])
        assert code == 1
        assert "which is private" in said


def test_a_program_that_does_not_end_is_ended() -> None:
    assert run_confined(Confinement(), ["/bin/sleep", "600"], limit_s=0.2)[0] is None


def test_no_code_folder_lies_above_or_in_a_private_one(tmp_path: Path) -> None:
    imports = ["", "/", str(tmp_path), str(Path.cwd()), str(tmp_path / "state"), str(tmp_path / "state/x")]
    (tmp_path / "state" / "x").mkdir(parents=True)
    (tmp_path / "libraries").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    imports += [str(tmp_path / "libraries"), str(tmp_path / "link"), str(tmp_path / "gone")]
    private = [tmp_path / "link" / "state", PACKAGES / "docs"]
    found = interpreter_folders(private, imports)
    assert tmp_path / "libraries" in found
    assert PACKAGES / "headway" in found, "beside what is private in a checkout, its code is still there"
    for one in found:
        for closed in (tmp_path / "state", PACKAGES / "docs"):
            assert not one.is_relative_to(closed)
            assert not closed.is_relative_to(one)


def test_the_working_folder_is_none_of_the_code(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        assert tmp_path not in interpreter_folders([], [str(tmp_path), ""])
    assert tmp_path in interpreter_folders([], [str(tmp_path)])
    assert list(misplaced([tmp_path])) == []


@pytest.mark.parametrize(
    "kind",
    [pytest.param("users", marks=needs_root), pytest.param("landlock", marks=needs_landlock), "none"],
)
def test_attempts_of_a_confined_program_are_found_and_the_filter_denies_those_of_the_kernel(
    tmp_path: Path, kind: Kind
) -> None:
    tested = run_self_check(chosen(kind, state_in(tmp_path)))
    assert tested.facts is not None
    assert tested.facts.mode == kind
    results = tested.facts.results
    assert set(results) == set(PROBE_KINDS)
    assert sum(one.probes for one in results.values()) >= 100
    assert (results["kernel"].open, results["sockets"].open) == ([], [])
    assert ("signal the agent" in results["signals"].open) == (kind == "none")
    assert ("memory of another job" in results["memory"].open) == (kind == "none")
    assert bool(results["files"].open) == (kind == "none")
    assert not [name for name in results["processes"].open if name.startswith("set limits")]


def test_without_the_filter_the_same_attempts_on_the_kernel_succeed(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    every = choose("none", state, base_env(os.environ, ()), UserIds(), None, all_calls=True)
    tested = run_self_check(every)
    assert "system calls of jobs are not filtered: the agent was told to allow all" in every.lacks
    assert tested.facts is not None
    assert "set limits of another job" in tested.facts.results["processes"].open
    assert {"keyctl", "add_key", "ptrace"} <= set(tested.facts.results["kernel"].open)
