"""Test of the isolation before an agent takes jobs: a confined program tries to reach what no job may reach.

The check creates two fictitious jobs. The first has code, output, a home folder and an environment. A program
that runs as the second, confined as ranks are, tries to read all of that, the agent's credentials and the
agent's own environment.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import structlog

from headway.contract.agents import RankSlot, RunCommand, SlotInfo
from headway.contract.isolation import IsolationFacts, ProbeResult
from headway.contract.runtime import message_file
from headway.contract.values.listing import some_of
from worker_agent.host.folders import RunFolder, write_text
from worker_agent.isolation import control_groups
from worker_agent.isolation.code_folders import misplaced
from worker_agent.isolation.confined import run_confined, standing_confined
from worker_agent.isolation.modes import Isolation, give
from worker_agent.isolation.scratch import remove_scratch, scratch_of
from worker_agent.launcher import interfaces, intruder
from worker_agent.launcher.confinement import Confinement
from worker_agent.launcher.system_calls import MACHINES

_log = structlog.get_logger()

_NEIGHBOUR, _INTRUDER = "headway-probe-neighbour", "headway-probe-intruder"
_CANARY = ".probe-credentials.tmp"
"""Test file beside the credentials, which exist only once the agent has joined.

A restarted agent removes an old one, as it does every half-written file.
"""
_STANDING = "import signal; print(1, flush=True); signal.pause()"
Place = Literal["root", "work", "home", "scratch", "tmp", "proc"]
"""Working folder of the intruder: one of the host, or one of its own job."""
_MOST_FILES = 50
_MOST_SHOWN = 5
_MOST_CHARACTERS = 1000
"""Maximum length of the reason that the service accepts (`SlotInfo.withheld`)."""


def run_self_check(isolation: Isolation) -> Isolation:
    """Return the isolation, with the reason in `broken` if it fails the test: then no job may be started.

    Without isolation (`none`) the test only finds `facts`. The function forks, so call it before any thread
    starts.
    """
    clean_up(isolation)
    facts = None
    try:
        facts, problem = examine(isolation)
    except (OSError, ValueError) as error:
        problem = f"the test could not be set up: {error}"
    finally:
        clean_up(isolation)
    isolation = replace(isolation, facts=facts)
    if not problem:
        return isolation
    if isolation.kind == "none":
        if facts is None:
            _log.warning("the isolation is not tested", why=problem)
        return isolation
    broken = f"jobs are not kept apart by {isolation.kind} on this host: {problem}"[:_MOST_CHARACTERS]
    _log.error("this agent takes no jobs", code="isolation_broken", why=broken, see="docs/isolation.md")
    return replace(isolation, broken=broken)


def mark_withheld(slots: list[SlotInfo], isolation: Isolation) -> list[SlotInfo]:
    """Return the slots as the service is to see them, with the reason why no job may use them, if any."""
    return [slot.model_copy(update={"withheld": isolation.broken}) for slot in slots]


def examine(isolation: Isolation, place: Place = "root") -> tuple[IsolationFacts | None, str]:
    """Return what a job reaches from a working folder, and the problem with the isolation; empty if there is none.

    The caller removes the files of the test with `clean_up`.

    Raises:
        OSError: the test cannot be set up.
    """
    for folder, private in misplaced(isolation.closed):
        return None, (
            f"the Python of ranks ({folder}) lies in {private}, which is closed to them. Install it elsewhere"
        )
    neighbour = _make_test_job(isolation, _NEIGHBOUR)
    intruder_folder = _make_test_job(isolation, _INTRUDER)
    targets = {
        "read": [*(str(one) for one in _read_targets(isolation, neighbour)), *_own_process_files()],
        "list": [str(one) for one in _list_targets(isolation, neighbour)],
        "write": [str(one) for one in _write_targets(isolation, neighbour)],
        "own": str(intruder_folder.work),
    }
    confinement = isolation.confinement(_command(_INTRUDER), intruder_folder)
    cwd = _working_folder(place, intruder_folder, isolation)
    code, output = run_confined(
        confinement, [sys.executable, "-P", intruder.__file__, json.dumps(targets)], folder=cwd
    )
    if code != 0:
        return None, f"a program does not start there: {output}"
    found = json.loads(output.splitlines()[-1])
    if not found["own"]:
        return None, f"a job cannot write to its own folder, {intruder_folder.work}"
    reached = list(found["reached"])
    of_files = ProbeResult(probes=sum(len(targets[verb]) for verb in ("read", "list", "write")), open=reached)
    results = {"files": of_files, **_interfaces(isolation, confinement, neighbour, cwd)}
    facts = IsolationFacts.model_validate({"mode": isolation.kind, "results": results})
    return facts, f"a job could {some_of(reached, _MOST_SHOWN)}" if reached else ""


def _interfaces(
    isolation: Isolation, confinement: Confinement, neighbour: RunFolder, cwd: str
) -> dict[str, ProbeResult]:
    """Return what the intruder reaches besides files, with a running process of the neighbour; empty where it cannot run.

    A failure is only logged: nothing here withholds the host, so neither may a busy host or a strange kernel.
    """
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        return {}
    calls = {"clone": machine.clone, "clone3": machine.clone3, "unshare": machine.unshare}
    theirs = isolation.confinement(_command(_NEIGHBOUR), neighbour)
    try:
        with standing_confined(theirs, [sys.executable, "-I", "-S", "-c", _STANDING]) as other:
            targets = {
                "processes": {"the agent": os.getpid(), "another job": other},
                "numbers": {**machine.denied, **calls},
            }
            argv = [sys.executable, "-P", interfaces.__file__, json.dumps(targets)]
            code, output = run_confined(confinement, argv, folder=cwd)
    except OSError as error:
        code, output = None, str(error)
    if code != 0:
        _log.warning("the interfaces of the kernel are not tested", why=output)
        return {}
    found: dict[str, dict[str, bool]] = json.loads(output.splitlines()[-1])
    return {
        kind: ProbeResult(probes=len(probes), open=[name for name, is_open in probes.items() if is_open])
        for kind, probes in found.items()
    }


def _working_folder(place: Place, folder: RunFolder, isolation: Isolation) -> str:
    folders = {
        "root": "/",
        "work": folder.work,
        "home": folder.job.home,
        "scratch": scratch_of(folder.job, isolation.scratch),
        "tmp": "/tmp",  # noqa: S108  # a job may work there
        "proc": "/proc",
    }
    return str(folders[place])


def _make_test_job(isolation: Isolation, job_id: str) -> RunFolder:
    """Create a job with the folders of a running job, and a file in each of its places."""
    command = _command(job_id)
    folder = isolation.state.job(job_id).run(command.generation)
    folder.control.mkdir(mode=0o700, parents=True)
    folder.work.mkdir(mode=0o700)
    isolation.prepare(command, folder)
    isolation.make_control(command, folder)
    for path in (folder.command, folder.env(0), folder.log(0)):
        write_text(path, job_id)
    for path in _places(isolation, folder):
        write_text(path / "secret", job_id)
    user = isolation.user_of(job_id)
    give(folder.log(0), user)
    for path in _places(isolation, folder):
        give(path / "secret", user)
        give(path, user)
    return folder


def _command(job_id: str) -> RunCommand:
    return RunCommand(
        command_id=job_id,
        job_id=job_id,
        job_name=job_id,
        generation=1,
        attempt=1,
        restart_count=0,
        run="true",
        bundle=None,
        env={},
        ranks=[RankSlot(rank=0, local_rank=0, slot=0)],
        world_size=1,
        node_rank=0,
        node_count=1,
        master_addr="localhost",
        master_port=1,
        hosts_store=False,
        global_batch=None,
        checkpoint_uri="s3://none/none",
        checkpoint_every_s=None,
        checkpoint_keep=1,
        grace_s=0.0,
    )


def _places(isolation: Isolation, folder: RunFolder) -> list[Path]:
    job = folder.job
    return [folder.work, job.home, job.output, scratch_of(job, isolation.scratch)]


def _read_targets(isolation: Isolation, neighbour: RunFolder) -> Iterator[Path]:
    state = isolation.state
    yield from (one for one in (state.credentials, state.identity, state.outbox, state.slots) if one.exists())
    write_text(state.path / _CANARY, "node_token")
    yield state.path / _CANARY
    if isolation.kind == "landlock":  # users cannot enter private folders, because of their modes
        for folder in isolation.private:
            if folder.is_dir():
                yield from [one for one in sorted(folder.iterdir()) if one.is_file()][:_MOST_FILES]
    yield from (neighbour.command, neighbour.env(0), neighbour.log(0), neighbour.control / message_file(0))
    yield from (path / "secret" for path in _places(isolation, neighbour))


def _list_targets(isolation: Isolation, neighbour: RunFolder) -> Iterator[Path]:
    state = isolation.state
    yield from (
        state.path,
        state.bundles,
        state.runs,
        neighbour.path,
        neighbour.path.parent,
        neighbour.control,
    )
    yield from (isolation.scratch, *_places(isolation, neighbour))
    if isolation.kind == "landlock":
        yield from (folder for folder in isolation.private if folder.is_dir())


def _write_targets(isolation: Isolation, neighbour: RunFolder) -> Iterator[Path]:
    state = isolation.state
    for folder in (state.path, state.bundles, neighbour.path, neighbour.control, neighbour.work):
        yield folder / "probe"
    yield neighbour.control / message_file(0)


def _own_process_files() -> list[str]:
    return [f"/proc/{os.getpid()}/{name}" for name in ("environ", "mem", "cwd/.", "maps")]


def clean_up(isolation: Isolation) -> None:
    """Remove the files that this agent, or an earlier one, created for the check."""
    state = isolation.state
    (state.path / _CANARY).unlink(missing_ok=True)
    for job_id in (_NEIGHBOUR, _INTRUDER):
        job = state.job(job_id)
        if isolation.groups is not None and job.path.exists():
            control_groups.remove(isolation.groups.make(job.run(1).name))
        remove_scratch(job, state)
        shutil.rmtree(job.path, ignore_errors=True)
    for folder in (state.path, state.bundles):
        (folder / "probe").unlink(missing_ok=True)  # exists if the intruder could create it
