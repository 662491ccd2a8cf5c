"""The agent's loop: one thread owns all runs; the others hand it calls.

It turns commands and events into `RunState`, lets `reconcile` decide, and carries the actions out. What it
knows of processes it reads from the files that the launcher writes.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import structlog
from structlog.contextvars import bound_contextvars

from headway.contract.agents import AnyCommand, Holding, OrderCommand, RunCommand, StopCommand
from worker_agent import orders
from worker_agent import reconcile as rules
from worker_agent.folders import RunFolder, StateFolder, boot_s, read_json
from worker_agent.launcher import protocol
from worker_agent.launcher_link import LauncherLink
from worker_agent.logs import LogShipper
from worker_agent.outbox import Outbox
from worker_agent.preparing import CannotPrepare, Host, launch_plan, write_plan
from worker_agent.reclaim import Reclaim
from worker_agent.reconcile import Phase
from worker_agent.records import Run, load_runs, new_run, read_fence, unshipped_logs, write_fence
from worker_agent.runs import Runs
from worker_agent.secrets import RunSecrets
from worker_agent.service_api import Refused
from worker_agent.watching import Watcher

_log = structlog.get_logger()

_POLL_S = 0.05
"""How late a message of a rank, or a SIGKILL that falls due, may be."""
_SWITCH_POLL_S = 0.01
_SWITCH_S = 10.0
"""How long after an order its members are listened to more closely: they switch now, and say so."""
_IDLE_POLL_S = 1.0
_CONNECT_POLL_S = 0.02


class Prepares(Protocol):
    """Makes working folders."""

    def prepare(self, command: RunCommand, folder: RunFolder) -> CannotPrepare | None:
        """Make the working folder of the run; None when it is there."""


class Supervisor:
    """Owner of all runs. Only `handle`, `lease_renewed`, `reclaimed`, `refused`, `post` and `holding` are for other
    threads.
    """

    def __init__(
        self,
        *,
        state: StateFolder,
        link: LauncherLink,
        outbox: Outbox,
        shipper: LogShipper,
        preparer: Prepares,
        secrets: RunSecrets,
        host: Host,
    ) -> None:
        self._state = state
        self._link = link
        self._outbox = outbox
        self._secrets = secrets
        self._watcher = Watcher(outbox, secrets)
        self._news = self._watcher.news
        self._shipper = shipper
        self._preparer = preparer
        self._host = host
        self._deadline_s = 0.0
        self._switching_until_s = 0.0
        self._reclaim = Reclaim()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)  # noqa: FBT003
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._runs = Runs()
        self._adopt()

    # For other threads.

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop run this. Also safe in a signal handler."""
        self._calls.put(call)
        with contextlib.suppress(BlockingIOError):  # full of wake-ups is awake enough
            self._waker.send(b"\0")

    def handle(self, command: AnyCommand) -> None:
        """Take a command up; returns when that is on disk."""
        done = threading.Event()

        def take() -> None:
            self._take(command)
            done.set()

        self.post(take)
        done.wait()

    def holding(self) -> Sequence[Holding]:
        """Generations that hold slots."""
        return self._runs.holding()

    def lease_renewed(self, deadline_s: float, stop: list[Holding]) -> None:
        """A report got through."""
        self.post(partial(self._renew, deadline_s, stop))

    def reclaimed(self, deadline_s: float) -> None:
        """The host is taken away at `deadline_s` (boot-time clock)."""
        self.post(partial(self._reclaim.announced, deadline_s))

    def refused(self, error: Refused) -> None:
        """The service does not want this agent: the loop raises the error."""

        def fail() -> None:
            raise error

        self.post(fail)

    # The loop.

    def run_once(self) -> None:
        """Wait until something happened, and do what it calls for.

        Raises:
            HeadwayError: this agent cannot work.
        """
        wait_s = self._wait_s()
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._woken:
                self._woken.recv(4096)
            else:
                self._read_launcher()
        while not self._calls.empty():
            self._calls.get()()
        for run in self._runs.with_processes():
            self._news.messages(run)
        self._watcher.look(self._runs.with_processes())
        self._replace_launcher()
        self._reclaim.stop_what_is_due(self._runs)
        self._act()

    def idle(self) -> bool:
        """Whether no run is left."""
        return not self._runs

    def stop_all(self, grace_s: float) -> None:
        """Stop every run as a `stop` with a checkpoint would."""
        for run in self._runs:
            self._stop(run, kill=False, grace_s=grace_s)

    def _wait_s(self) -> float:
        if not self._connect():
            return _CONNECT_POLL_S
        if not self._runs.with_processes():
            return _IDLE_POLL_S
        return _SWITCH_POLL_S if boot_s() < self._switching_until_s else _POLL_S

    def _act(self) -> None:
        for action in rules.reconcile(self._runs.states(), boot_s()):
            run = self._runs.of(action.run)
            if isinstance(action, rules.Release):
                self._release(run)
            elif self._link.ready:  # else it is due again when there is a launcher
                self._order(action, run)

    def _order(self, action: rules.Action, run: Run) -> None:
        match action:
            case rules.Start():
                self._start(run)
            case rules.Terminate():
                self._link.send(protocol.Terminate(run.folder.name))
                run.state = replace(run.state, terminated=True)
            case rules.Kill():
                self._link.send(protocol.Kill(run.folder.name))
                run.state = replace(run.state, killed=True)
        run.save()

    def _start(self, run: Run) -> None:
        try:
            plan = launch_plan(run.command, run.folder, self._host, hosts_stores=self._link.hosts_stores)
            write_plan(plan, run.folder, to_older_launcher=self._link.outdated)
            self._link.start(run.name, self._secrets.env(run.name))
        except OSError as error:
            self._news.start_failed(run, str(error), retryable=True)
            run.state = replace(run.state, phase=Phase.GONE)
            return
        run.state = replace(run.state, phase=Phase.LIVE)

    def _release(self, run: Run) -> None:
        newest = max(run.state.generation, run.release_as)
        others = len(self._runs.held(run.state.job_id, newest=newest)) > 1
        self._news.released(run, older_stay=others)
        run.folder.ended.touch()
        self._shipper.over(run.folder.name)
        self._runs.remove(run)
        _log.info("released", run=run.folder.name)

    def _take(self, command: AnyCommand) -> None:
        with bound_contextvars(command=command.command_id):
            try:
                match command:
                    case RunCommand():
                        self._take_run(command)
                    case OrderCommand():
                        self._take_order(command)
                    case StopCommand():
                        self._take_stop(command)
            except ValueError as error:
                _log.error("ignored a command", error=str(error))
        self._outbox.acknowledge(command.command_id)

    def _take_run(self, command: RunCommand) -> None:
        job = self._state.job(command.job_id)
        fence = read_fence(job)
        reason = rules.refusal(fence, command.generation)
        if reason:
            _log.info("ignored a run", job=command.job_id, generation=command.generation, reason=reason)
            self._release_unheld(command.job_id, command.generation, command.generation)
            return
        run = new_run(self._state, command)
        orders.deliver(job, run.folder)
        write_fence(job, replace(fence, run=command.generation))
        _log.info("run", run=run.folder.name, name=command.job_name, ranks=len(command.ranks))
        self._add(run)

    def _take_order(self, command: OrderCommand) -> None:
        job = self._state.job(command.job_id)
        runs = [run for run in self._runs.held(command.job_id) if run.state.phase is not Phase.GONE]
        if not runs:
            _log.info("ignored an order", job=command.job_id, generation=command.generation)
            return
        orders.keep(job, orders.order_of(command))
        for run in runs:
            orders.deliver(job, run.folder)
        self._watcher.ordered(runs, command)
        self._switching_until_s = boot_s() + _SWITCH_S
        _log.info("order", job=command.job_id, generation=command.generation, members=len(command.members))

    def _take_stop(self, command: StopCommand) -> None:
        job = self._state.job(command.job_id)
        fence = read_fence(job)
        write_fence(job, replace(fence, stop=max(fence.stop, command.generation)))
        for run in self._runs.held(command.job_id, newest=command.generation, oldest=command.oldest):
            _log.info("stop", run=run.folder.name, mode=command.mode, grace_s=command.grace_s)
            run.release_as = max(run.release_as, command.generation)
            wait_s = self._watcher.last_words(run) if command.dump_stacks else 0.0
            self._stop(run, kill=command.mode == "kill", grace_s=command.grace_s, wait_s=wait_s)
        self._release_unheld(command.job_id, command.generation, command.oldest)

    def _release_unheld(self, job_id: str, generation: int, oldest: int) -> None:
        """Say so when nothing is here of what a command was about: the service may wait for its end."""
        if not self._runs.held(job_id, newest=generation):
            self._news.nothing_held(job_id, generation)
        elif not self._runs.held(job_id, newest=generation, oldest=oldest):
            self._news.slots_free(job_id, generation, [slot.index for slot in self._host.slots])

    def _stop(self, run: Run, *, kill: bool, grace_s: float, wait_s: float = 0.0) -> None:
        run.state = rules.stopped(run.state, kill=kill, grace_s=grace_s, now_s=boot_s() + wait_s)
        run.save()

    def _renew(self, deadline_s: float, stop: list[Holding]) -> None:
        for held in stop:
            for run in self._runs.held(held.job_id, newest=held.generation, oldest=held.generation):
                if not run.state.killed:
                    _log.info("the service does not want this run here", run=run.folder.name)
                    self._stop(run, kill=True, grace_s=0.0)
        self._deadline_s = deadline_s
        self._link.send(protocol.Lease(deadline_s))

    # Runs.

    def _adopt(self) -> None:
        for logged in unshipped_logs(self._state):
            self._secrets.recall(logged, self._shipper.hurry)
            self._shipper.watch(logged)
            self._shipper.over(logged.folder.name)
        for run in load_runs(self._state):
            _log.info("adopted", run=run.folder.name, phase=run.state.phase)
            self._add(run)

    def _add(self, run: Run) -> None:
        self._runs.add(run)
        self._shipper.watch(run.logged)
        if run.state.phase is Phase.PREPARING:
            threading.Thread(target=self._prepare, args=[run], daemon=True).start()
        else:
            self._secrets.recall(run.logged, self._shipper.hurry)
            self._look(run)

    def _prepare(self, run: Run) -> None:
        """A thread's body: downloads may take long."""
        try:
            problem = self._preparer.prepare(run.command, run.folder)
        except Exception as error:  # noqa: BLE001  # whatever it is, the service hears of it
            _log.exception("preparing failed", run=run.folder.name)
            problem = CannotPrepare(f"The run could not be prepared: {error}", retryable=True)
        self.post(partial(self._prepared, run, problem))

    def _prepared(self, run: Run, problem: CannotPrepare | None) -> None:
        if problem is None:
            run.state = replace(run.state, phase=Phase.READY)
        elif run in self._runs:
            self._news.start_failed(run, problem.message, retryable=problem.retryable)
            run.state = replace(run.state, phase=Phase.GONE)

    def _look(self, run: Run) -> None:
        """Take in what the launcher wrote about the run."""
        gone = run.folder.gone.exists()  # asked once, and first: all else is written before it
        started = read_json(run.folder.started)
        if started is not None and any(run.folder.pid(slot.rank).exists() for slot in run.command.ranks):
            self._news.started(run, started["how"])
        if self._news.exits(run, gone=gone):
            run.state = rules.after_failure(run.state, boot_s())
            run.save()
        self._shipper.hurry()
        if gone:
            if not run.start_reported:
                self._news.start_failed(run, "The launcher could not start the ranks.", retryable=True)
            run.state = replace(run.state, phase=Phase.GONE)
        else:
            self._release_slots(run)

    def _release_slots(self, run: Run) -> None:
        """Slots of a live run become free one by one."""
        freed = self._news.slots_released(run)
        if freed:
            run.state = replace(run.state, slots=run.state.slots - freed)
            run.save()
            self._runs.publish()

    # The launcher.

    def _connect(self) -> bool:
        if self._link.connection is not None:
            return True
        connection = self._link.connect()
        if connection is not None:
            self._selector.register(connection, selectors.EVENT_READ)
        return connection is not None

    def _read_launcher(self) -> None:
        connection = self._link.connection
        messages = self._link.receive()
        if messages is None and connection is not None:
            self._selector.unregister(connection)
            _log.warning("the launcher is gone")
        for message in messages or []:
            self._hear(message)

    def _hear(self, message: protocol.Message) -> None:
        match message:
            case protocol.Welcome(_, hosts_stores, kept):
                _log.info("launcher ready", torch=hosts_stores, runs=len(kept))
                self._link.send(protocol.Lease(self._deadline_s))
                for run in self._runs.with_processes():
                    self._meet_again(run, kept)
            case protocol.Started(name, how, error, retryable):
                run_started = self._runs.named(name)
                if run_started is not None and error:
                    self._news.start_failed(run_started, error, retryable=retryable)
                elif run_started is not None:
                    self._news.started(run_started, how)
            case protocol.Changed(name):
                run_changed = self._runs.named(name)
                if run_changed is not None:
                    self._look(run_changed)
            case _:
                _log.warning("the launcher said something unknown", message=message)

    def _meet_again(self, run: Run, kept: list[str]) -> None:
        """Compare what the agent believes of a live run with what this launcher keeps."""
        if run.folder.name in kept:
            run.state = replace(run.state, killed=False)  # an order on a lost connection is given again
        elif not run.folder.gone.exists():
            run.state = replace(run.state, phase=Phase.READY)  # the order to start it was lost
            return
        self._look(run)

    def _replace_launcher(self) -> None:
        """A launcher with old code in memory makes way as soon as it keeps nothing."""
        if self._link.outdated and not self._runs.with_processes():
            _log.info("replacing the launcher: the code has changed")
            connection = self._link.connection
            if connection is not None:
                self._selector.unregister(connection)
            self._link.shut_down()
            self._link.close()
