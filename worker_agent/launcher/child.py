"""Body of a forked child process, which becomes a rank or keeps a job's store."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shlex
import signal
import socket
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from headway.contract.runtime import ENV_BESIDE, ENV_COMMAND, ENV_JOB_NAME, EXIT_RETRY, MEMBERSHIP_VARIABLES
from headway.lookups import ask_no_name_servers
from worker_agent.host.folders import RunFolder, read_json
from worker_agent.isolation import control_groups
from worker_agent.launcher import confinement, containers, preload, program
from worker_agent.launcher.commandline import How, PythonTarget, python_target
from worker_agent.launcher.processes import (
    adopt_orphans,
    die_with_parent,
    name_process,
    set_dumpable,
    title_process,
)
from worker_agent.launcher.protocol import LaunchPlan
from worker_agent.launcher.sessions import Streams

_OOM_SCORE = "500"
"""OOM score adjustment of a rank: the kernel kills it before the agent, the stores and the launcher."""


def fork(body: Callable[[], None]) -> int:
    """Fork a child that runs `body`, which must not return. Return the child's pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    launcher = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_parent()
        if os.getppid() != launcher:
            os._exit(1)  # the launcher died before the kernel knew of the death signal
        os.setsid()
        body()
    except BaseException:  # noqa: BLE001  # the child must never continue in the launcher's own code
        sys.excepthook(*sys.exc_info())
    finally:
        # A rank that did not reach its script, because of a full disk for example, is not the script's fault.
        program.flush_and_exit(EXIT_RETRY)


def run_rank(plan: LaunchPlan, how: How, rank: int, folder: RunFolder, secrets: int | None) -> NoReturn:
    """Turn this process into the rank; never returns. No code of the job runs before the rank is confined."""
    set_dumpable(yes=True)  # the launcher is not dumpable, but a rank must read its own files in /proc
    _reset_signals()
    _redirect(folder.log(rank), plan.confinement.uid)
    env = _named_environment(plan, rank, folder, secrets, plan.argv)
    if plan.container is not None:
        containers.become(plan.container, rank, plan.argv, cwd=plan.cwd, env=env)
    _enter_place(plan, rank)
    tempfile.tempdir = None  # discard the folder that the launcher may have cached
    target = python_target(plan.argv)
    if how == "spawn" or target is None:
        _execute(plan.argv, target, env)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()  # the C library has read the launcher's zone
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as every Python interpreter does
    preload.use_threads(plan.threads)
    preload.fresh_seeds()
    sys.path[1:1] = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.orig_argv = list(plan.argv)
    program.run(target.name, target.arguments, is_module=target.is_module)


def run_command(
    plan: LaunchPlan,
    rank: int,
    folder: RunFolder,
    secrets: int | None,
    argv: Sequence[str],
    streams: Streams,
    command: str,
    term: str = "",
) -> NoReturn:
    """Turn this process into a command beside the rank, with its confinement; never returns.

    If `term` names the type of a terminal, the streams are one, which becomes that of the command's session.

    It has the rank's environment without `MEMBERSHIP_VARIABLES`: a training script must not act as the rank.
    """
    set_dumpable(yes=True)
    _reset_signals()
    streams.become_standard()
    if plan.confinement.uid is not None:
        for descriptor in (1, 2):
            os.fchown(descriptor, plan.confinement.uid, -1)  # programs reopen /dev/stdout
    if term:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    env = _named_environment(plan, rank, folder, secrets, argv)
    env = {name: value for name, value in env.items() if name not in MEMBERSHIP_VARIABLES}
    env |= {ENV_BESIDE: str(folder.control), ENV_COMMAND: command, **({"TERM": term} if term else {})}
    _enter_place(plan, rank)
    adopt_orphans()  # the kernel keeps it across the execution
    _execute(argv, None, env)


def _named_environment(
    plan: LaunchPlan, rank: int, folder: RunFolder, secrets: int | None, argv: Sequence[str]
) -> dict[str, str]:
    """Return the rank's variables, and name this process after the rank and its command."""
    env = {**plan.ranks[rank], **(read_json(folder.env(rank)) or {}), **_secrets_in(secrets)}
    job = env.get(ENV_JOB_NAME, "")
    name_process(program.process_name(job, rank))
    title_process(f"hw:{job}:{rank} {shlex.join(argv)}")
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="utf-8")
    return env


def _enter_place(plan: LaunchPlan, rank: int) -> None:
    """Enter the rank's control group, confinement and working folder."""
    group = control_groups.of_rank(plan.confinement.group, rank)
    if group is not None:
        control_groups.join(group)
    confinement.enter(plan.confinement)
    os.chdir(plan.cwd)


def keep_store(listener: socket.socket, log: Path) -> NoReturn:
    """Serve the job's TCPStore on the socket until the process is killed; never returns."""
    _reset_signals()
    _redirect(log)
    name_process("headway store")
    ask_no_name_servers()
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415

    port = listener.getsockname()[1]
    store = TCPStore(  # noqa: F841  # lives as long as this frame
        "localhost", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    while True:
        signal.pause()


def _secrets_in(memory: int | None) -> dict[str, str]:
    """Return the variables that the agent stored in the memory file.

    All ranks of the run share the file description, so the function does not move its position.
    """
    if memory is None:
        return {}
    env: dict[str, str] = json.loads(os.pread(memory, os.fstat(memory).st_size, 0))
    os.close(memory)
    return env


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _execute(argv: Sequence[str], target: PythonTarget | None, env: Mapping[str, str]) -> NoReturn:
    if target is not None:
        module = ["-m"] if target.is_module else []
        argv = [argv[0], program.__file__, *module, target.name, *target.arguments]
    try:
        os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606  # a shell is part of `argv` where one is needed
    except OSError as error:
        size = sum(len(os.fsencode(one)) + 9 for one in (*argv, *env, *env.values()))
        held = f": the command and its environment have {size:,} bytes" if error.errno == errno.E2BIG else ""
        sys.stderr.write(f"{argv[0]}: {error.strerror}{held}\n")
        program.flush_and_exit(126)


def _redirect(log: Path, uid: int | None = None) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if uid is not None:
        os.fchown(output, uid, -1)  # programs reopen /dev/stdout
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)
    os.close(output)
