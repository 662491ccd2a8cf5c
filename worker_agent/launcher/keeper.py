"""Start, reap and kill the processes of runs; the socket is handled elsewhere.

A run is finished when its `gone` file exists: no rank, no leftover process of a rank and no store remains.
Each rank of a live run has its own `gone` file, because ranks join and leave one by one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headway.contract.orders import member_id
from headway.contract.runtime import ENV_BESIDE, ENV_CONTROL, ENV_MEMBER
from worker_agent.host.folders import RunFolder, StateFolder, boot_s, read_json, write_json
from worker_agent.isolation import control_groups
from worker_agent.launcher import child, connections, leftovers, processes
from worker_agent.launcher.commandline import How, python_target
from worker_agent.launcher.executables import why_not_executable
from worker_agent.launcher.preload import Preloaded, shadowed
from worker_agent.launcher.processes import Process
from worker_agent.launcher.protocol import LaunchPlan, Started
from worker_agent.launcher.removal import Removal
from worker_agent.launcher.sessions import MAX_SESSIONS, Session, Streams

_log = logging.getLogger(__name__)

STORE_LINGER_S = 10.0
"""Maximum seconds that a store waits for ranks on other nodes to disconnect."""


@dataclass(slots=True)
class KeptRun:
    """Run that has processes. `signalled` are ranks that received a signal while they lived."""

    folder: RunFolder
    how: How
    ranks: dict[int, int] = field(default_factory=dict)
    """Pid of each living rank."""
    groups: set[int] = field(default_factory=set)
    """Process groups of all ranks that are not gone, living or not."""
    live: bool = False
    leaving: dict[int, int] = field(default_factory=dict)
    """Process group of each rank of a live run that ended and may have left processes behind."""
    signalled: set[int] = field(default_factory=set)
    unwritten: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Exit records of ranks that are not on disk yet, for example because it is full."""
    store: int | None = None
    store_port: int = 0
    store_until_s: float = 0.0
    """Boot-time clock at which the store is killed in any case; 0 while a rank lives here."""
    store_lingers: bool = False
    """True if ranks on other nodes may use the store."""
    killed: bool = False
    group: Path | None = None
    """Control group of the run; None without control groups."""
    uid: int | None = None
    """User id of the run's ranks; None means the launcher's."""
    sessions: list[Session] = field(default_factory=list)
    """Commands that people run beside the ranks."""
    removal: Removal | None = None
    """Removal of the run's containers; None if ranks are processes of the host."""

    @property
    def markers(self) -> tuple[str, str]:
        """Environment variables, one of which every process of a rank or of a command inherits."""
        return (f"{ENV_CONTROL}={self.folder.control}", f"{ENV_BESIDE}={self.folder.control}")

    def set_ownership(self, plan: LaunchPlan) -> None:
        """Store the user, control group and containers by which the run's processes are found."""
        self.uid = plan.confinement.uid
        self.removal = None if plan.container is None else Removal(plan.container, plan.ranks)
        self.group = None if plan.confinement.group is None else Path(plan.confinement.group)


class CannotStart(Exception):  # not a fault of this program
    """Raised when a run cannot start here. `retryable`: a later attempt or another node may succeed."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        self.retryable = retryable
        super().__init__(message)


class Keeper:
    """All runs of one agent, with their processes.

    Args:
        state: the agent's folder.
        preloaded: the modules that a forked rank inherits.
        changed: called with the name of a run when one of its files was written.
        release: called in every child, to close what belongs to the launcher alone.
    """

    def __init__(
        self,
        state: StateFolder,
        preloaded: Preloaded,
        changed: Callable[[str], None],
        release: Callable[[], None],
    ) -> None:
        self._state = state
        self._preloaded = preloaded
        self._changed = changed
        self._release = release
        self._boot = processes.boot_id()
        self._deadline_s = 0.0
        self._kept: dict[str, KeptRun] = {}

    def names(self) -> tuple[str, ...]:
        """Return the names of runs that have processes."""
        return tuple(self._kept)

    def renew(self, deadline_s: float) -> None:
        """Let the ranks live until `deadline_s` (boot-time clock), which may be earlier than before.

        An agent that has just started knows no lease and says 0, which changes nothing.
        """
        self._deadline_s = deadline_s or self._deadline_s

    def start(self, name: str, secrets: int | None = None) -> Started:
        """Start the run as its launch file says. Idempotent: a known run stays unchanged.

        `secrets` is a descriptor that only the run's ranks read: later ranks inherit whatever the launcher
        has read.
        """
        folder = self._state.run(name)
        if name in self._kept:
            return Started(name, self._kept[name].how)
        if folder.gone.exists():
            return Started(name, "spawn", "the run is over", retryable=False)
        try:
            plan = LaunchPlan.from_json(read_json(folder.launch))
        except (TypeError, KeyError) as error:
            message = f"the launcher cannot read the order: the agent has another version ({error})"
            return Started(name, "spawn", message, retryable=True)
        run = KeptRun(folder, self._start_method(plan), live=plan.live)
        run.set_ownership(plan)
        self._kept[name] = run
        try:
            self._start(run, plan, secrets)
        except (CannotStart, OSError) as error:
            retryable = getattr(error, "retryable", True)
            self.kill(name)  # `tick` reports that it is gone, after this answer
            return Started(name, run.how, str(error), retryable=retryable)
        return Started(name, run.how)

    def execute(
        self,
        name: str,
        rank: int,
        argv: Sequence[str],
        streams: Streams,
        secrets: int | None = None,
        *,
        command: str = "",
        term: str = "",
        owner: object = None,
    ) -> int:
        """Run a command beside a living rank, in its environment and confinement. Return the command's pid.

        The keeper closes all four streams, now or when the command ends, also if it raises. A refusal is
        also told through the status pipe. `command` is the id for `end_command`, `term` the type of the
        terminal that the streams are, if any, and `owner` is the connection for `end_commands`.

        Raises:
            CannotStart: the rank does not live here, its run is being killed, it runs in a container, or the
                node has `MAX_SESSIONS` commands.
        """
        try:
            run, plan = self._beside(name, rank)
            pid = self._fork(
                partial(child.run_command, plan, rank, run.folder, secrets, argv, streams, command, term)
            )
        except BaseException as error:
            streams.refuse(str(error))
            raise
        finally:
            streams.close_standard()
        run.sessions.append(Session(pid, rank, tuple(argv), streams.status, command, owner))
        run.groups.add(pid)
        return pid

    def end_command(self, command: str) -> None:
        """Send SIGKILL to the command with this id, if it runs."""
        for session in self._sessions():
            if session.command == command:
                session.kill()

    def end_commands(self, owner: object) -> None:
        """Send SIGKILL to the commands of a connection, because the agent that passes on their output is gone."""
        for session in self._sessions():
            if session.owner is owner:
                session.kill()

    def _sessions(self) -> list[Session]:
        return [session for run in self._kept.values() for session in run.sessions]

    def _beside(self, name: str, rank: int) -> tuple[KeptRun, LaunchPlan]:
        """Return the run of a living rank and its plan, for a command beside the rank."""
        run = self._kept.get(name)
        if run is None or rank not in run.ranks or run.killed:
            raise CannotStart(f"rank {rank} of {name} does not run on this node", retryable=True)
        if len(self._sessions()) >= MAX_SESSIONS:
            raise CannotStart(f"{MAX_SESSIONS} commands already run on this node", retryable=True)
        plan = LaunchPlan.from_json(read_json(run.folder.launch))
        if plan.container is not None:
            raise CannotStart("the rank runs in a container", retryable=False)
        return run, plan

    def terminate(self, name: str) -> None:
        """Send SIGTERM to each rank; a rank has to stop the processes that it started."""
        run = self._kept.get(name)
        if run is None:
            return
        run.signalled.update(run.ranks)
        for pid in run.ranks.values():
            processes.terminate(pid)

    def kill(self, name: str) -> None:
        """Send SIGKILL to every process group of the run."""
        run = self._kept.get(name)
        if run is None:
            return
        run.signalled.update(run.ranks)
        run.killed = True
        run.store_until_s = boot_s()
        for pid in run.ranks.values():  # not reaped, so the pid and the group id are still theirs
            os.kill(pid, signal.SIGKILL)  # the rank may not lead its own group yet
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        for session in run.sessions:
            session.kill()

    def reap(self) -> None:
        """Collect every child process that ended."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            self._collect(ended.si_pid)

    def tick(self) -> None:
        """Enforce the lease, and finish runs whose ranks have ended."""
        if boot_s() >= self._deadline_s:
            for name, run in self._kept.items():
                if run.ranks and not run.killed:
                    _log.error("the lease expired: killing %s", name)
                    self.kill(name)
        for name, run in list(self._kept.items()):
            self._settle(name, run)

    def next_tick_s(self) -> float | None:
        """Return the seconds until `tick` must run again, or None if only an event can change anything."""
        if any(not run.ranks or run.unwritten or run.leaving for run in self._kept.values()):
            return 0.02
        if all(run.killed for run in self._kept.values()):
            return None  # the next event is their end
        return min(max(self._deadline_s - boot_s(), 0.0), 1.0)  # the host may sleep, so check now and then

    def sweep(self) -> None:
        """Finish the runs of an earlier launcher, whose ranks died with it."""
        for folder in (run for job in self._state.jobs() for run in job.runs()):
            if not folder.started.exists() or folder.gone.exists():
                continue
            run = KeptRun(folder, "spawn")
            with contextlib.suppress(TypeError, KeyError):  # from an earlier, unconfined version
                run.set_ownership(LaunchPlan.from_json(read_json(folder.launch)))
            for path in folder.path.glob("rank-*.pid"):
                if path.with_suffix(".gone").exists():
                    continue
                record = read_json(path)
                known = record and record["boot_id"] == self._boot
                if record and known and self._is_rank_or_vacant(record["pid"], record["start_ticks"]):
                    run.groups.add(record["pid"])
            _log.warning("%s was lost with an earlier launcher", folder.name)
            self._kept[folder.name] = run

    def _start(self, run: KeptRun, plan: LaunchPlan, secrets: int | None) -> None:
        if boot_s() >= self._deadline_s:
            raise CannotStart("the lease expired", retryable=True)
        if run.how == "spawn":
            _require_program(plan)
        if plan.store_host is not None and self._preloaded.has_torch:
            self._start_store(run, plan)
        write_json(run.folder.started, {"how": run.how})
        for rank in sorted(plan.ranks):
            pid = self._fork(partial(child.run_rank, plan, run.how, rank, run.folder, secrets))
            run.ranks[rank] = pid
            run.groups.add(pid)
            self._record(run.folder.pid(rank), pid)

    def _fork(self, body: Callable[[], None]) -> int:
        """Fork a child that closes what belongs to the launcher alone and runs `body`. Return its pid."""

        def body_of_child() -> None:
            self._release()
            for run in self._kept.values():
                for session in run.sessions:
                    os.close(session.status)  # a rank must not tell the end of a command
            body()

        return child.fork(body_of_child)

    def _start_store(self, run: KeptRun, plan: LaunchPlan) -> None:
        try:
            listener = connections.listen(plan.store_host or "", plan.store_port)
        except OSError as error:
            raise CannotStart(
                f"port {plan.store_port} for the job's store cannot be opened: {error}", retryable=True
            ) from error

        with listener:
            run.store = self._fork(partial(child.keep_store, listener, run.folder.path / "store.log"))
        run.store_port = plan.store_port
        run.store_lingers = plan.node_count > 1 or plan.live

    def _record(self, path: Path, pid: int) -> None:
        process = processes.read(pid)
        if process is not None:  # an unreaped child always has an entry
            write_json(path, {"pid": pid, "start_ticks": process.start_ticks, "boot_id": self._boot})

    def _collect(self, pid: int) -> None:
        """Reap one child. Its group id stays reserved until then, so the group is killed first."""
        found = next(
            ((run, rank) for run in self._kept.values() for rank, own in run.ranks.items() if own == pid),
            None,
        )
        if found is not None or any(one.pid == pid for run in self._kept.values() for one in run.sessions):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if found is not None:
            run, rank = found
            del run.ranks[rank]
            if run.live:
                run.leaving[rank] = pid
            run.unwritten[rank] = {
                "exit_code": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
                "signalled": rank in run.signalled,
            }
            for session in run.sessions:
                if session.rank == rank:
                    session.kill()
        for run in self._kept.values():
            for session in [one for one in run.sessions if one.pid == pid]:
                for process in processes.leftovers((), session.markers):
                    processes.kill(process)
                session.ended(code)
                run.sessions.remove(session)
                run.groups.discard(pid)
            if run.removal is not None and run.removal.pid == pid:
                run.removal.ended(code)
            if run.store == pid:
                run.store = None
                if run.ranks:
                    _log.error("the store of %s ended with code %d", run.folder.name, code)

    def _settle(self, name: str, run: KeptRun) -> None:
        """Write the exit records. Once no rank lives, kill leftover processes, then the store, then write `gone`.

        Leftover processes of a rank in a live run are killed at once, because its slot must be free while its
        peers continue.
        """
        for rank, record in list(run.unwritten.items()):
            write_json(run.folder.exit(rank), record)
            del run.unwritten[rank]
            self._changed(name)
        if run.leaving:
            self._settle_ranks(name, run)
        if run.ranks or run.leaving:
            return
        remains = self._remains(run)
        for process in remains:
            processes.kill(process)
        if run.store is not None:
            run.store_until_s = run.store_until_s or boot_s() + (STORE_LINGER_S if run.store_lingers else 0.0)
            if boot_s() >= run.store_until_s or not connections.has_remote_clients(run.store_port):
                os.kill(run.store, signal.SIGKILL)
        if not (remains or run.sessions) and run.store is None and self._removed(run, None):
            if run.group is not None:
                control_groups.remove(run.group)
            if run.uid is not None:
                leftovers.remove_memory(run.uid)
            write_json(run.folder.gone, {"at_boot_s": boot_s()})
            del self._kept[name]
            self._changed(name)

    def _remains(self, run: KeptRun) -> list[Process]:
        """Return leftover processes of a run whose ranks have ended, and kill those in its control group."""
        found = processes.leftovers(run.groups, run.markers)
        if run.group is not None and control_groups.members(run.group):
            control_groups.kill(run.group)
            found += processes.of(control_groups.members(run.group))
        known = {one.pid for one in found} | self._children()
        alone = all(one is run or one.uid != run.uid for one in self._kept.values())
        if alone:  # an orphan outside its group and without environment can only be this run's
            found += [one for one in processes.children_of(os.getpid(), run.uid) if one.pid not in known]
        return found

    def _removed(self, run: KeptRun, ranks: Collection[int] | None) -> bool:
        """Return True if the containers of these ranks are removed; None means all ranks of the run."""
        return run.removal is None or run.removal.done(ranks, self._fork)

    def _children(self) -> set[int]:
        """Return the pids of children that are ranks, stores, commands or removals."""
        runs = self._kept.values()
        others = {run.store for run in runs} | {run.removal.pid for run in runs if run.removal is not None}
        others |= {one.pid for run in runs for one in run.sessions}
        return {pid for run in runs for pid in run.ranks.values()} | {
            pid for pid in others if pid is not None
        }

    def _settle_ranks(self, name: str, run: KeptRun) -> None:
        """Kill leftover processes of ranks that ended, and mark the ranks without any as gone."""
        remains = processes.leftovers(set(run.leaving.values()), run.markers)
        for rank, group in list(run.leaving.items()):
            marker = f"{ENV_MEMBER}={member_id(run.folder.generation, rank)}"
            own = [one for one in remains if one.group == group or processes.has_environment(one.pid, marker)]
            held = control_groups.of_rank(run.group, rank)
            if held is not None:
                control_groups.kill(held)
                own += processes.of(control_groups.members(held))
            for process in own:
                processes.kill(process)
            if not own and self._removed(run, [rank]):
                write_json(run.folder.rank_gone(rank), {"at_boot_s": boot_s()})
                del run.leaving[rank]
                run.groups.discard(group)  # the kernel may reuse the number from now on
                self._changed(name)

    def _start_method(self, plan: LaunchPlan) -> How:
        """Return the order's start method, or "spawn" if a fork would differ from a new interpreter."""
        target = python_target(plan.argv)
        if plan.how == "spawn" or target is None or plan.container is not None:
            return "spawn"
        reason = self._preloaded.no_fork
        if not reason:
            start = Path(plan.cwd) if target.is_module else (Path(plan.cwd) / target.name).parent
            env = next(iter(plan.ranks.values()))
            extra = [Path(entry) for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
            name = shadowed([start, *extra])
            reason = f"the job has its own {name}" if name else ""
            read = self._preloaded.has_read(plan.set_by_job)
            reason = reason or (f"imported modules have read {read}" if read else "")
        if reason:
            _log.info("starting new interpreters: %s", reason)
            return "spawn"
        return "zygote"

    def _is_rank_or_vacant(self, pid: int, start_ticks: int) -> bool:
        """Return True if the pid is unused, or belongs to the rank with this start time."""
        process = processes.read(pid)
        return process is None or process.start_ticks == start_ticks


def _require_program(plan: LaunchPlan) -> None:
    path = next(iter(plan.ranks.values())).get("PATH", os.defpath)
    cause = why_not_executable(plan.argv[0], plan.cwd, path, in_image=plan.container is not None)
    if cause:
        raise CannotStart(cause, retryable=False)
