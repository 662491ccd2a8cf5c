"""Main loop of the agent: one thread owns all runs, and other threads queue calls for it.

The loop turns commands and events into `RunState`, lets `reconcile` decide, and executes the actions. Its
knowledge of processes comes from the files that the launcher writes.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import structlog
from structlog.contextvars import bound_contextvars

from headway.contract.agents import (
    AnyCommand,
    ExecCommand,
    ExecInput,
    Holding,
    OrderCommand,
    RunCommand,
    StopCommand,
)
from worker_agent.host.folders import StateFolder, boot_s, read_json
from worker_agent.launcher import protocol
from worker_agent.link.outbox import Outbox
from worker_agent.link.secrets import RunSecrets
from worker_agent.link.service_api import Refused
from worker_agent.logs.shipping import LogShipper
from worker_agent.output.keeper import Outputs
from worker_agent.runs import orders
from worker_agent.runs import reconcile as rules
from worker_agent.runs.executions import Executions
from worker_agent.runs.launcher_link import LauncherLink
from worker_agent.runs.preparing import CannotPrepare, Host, Preparer, launch_plan, write_plan
from worker_agent.runs.reclaim import Reclaim
from worker_agent.runs.reconcile import ActionKind, Phase
from worker_agent.runs.records import Run, load_runs, new_run, read_fence, unshipped_logs, write_fence
from worker_agent.runs.registry import Runs
from worker_agent.runs.watching import Watcher

_log = structlog.get_logger()

_POLL_S = 0.05
"""Maximum delay in seconds of a rank's message, or of a SIGKILL that is due."""
_SWITCH_POLL_S = 0.01
_SWITCH_S = 10.0
"""Seconds after an order during which messages are read more often, because the members report their switch."""
_IDLE_POLL_S = 1.0
_CONNECT_POLL_S = 0.02


class Supervisor:
    """Owner of all runs. Other threads may only call the methods of the first section."""

    def __init__(
        self,
        *,
        state: StateFolder,
        link: LauncherLink,
        outbox: Outbox,
        shipper: LogShipper,
        preparer: Preparer,
        secrets: RunSecrets,
        outputs: Outputs,
        executions: Executions,
        host: Host,
    ) -> None:
        self._executions = executions
        self._outputs = outputs
        self._state = state
        self._link = link
        self._outbox = outbox
        self._secrets = secrets
        self._watcher = Watcher(outbox, secrets)
        self._events = self._watcher.events
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

    # Calls from other threads.

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` in the loop. Also safe in a signal handler."""
        self._calls.put(call)
        with contextlib.suppress(BlockingIOError):  # a full pipe already wakes the loop
            self._waker.send(b"\0")

    def handle(self, command: AnyCommand) -> None:
        """Process a command, and return once its effect is on disk."""
        done = threading.Event()

        def execute() -> None:
            self._execute(command)
            done.set()

        self.post(execute)
        done.wait()

    def holding(self) -> Sequence[Holding]:
        """Return the generations that hold slots."""
        return self._runs.holding()

    def lease_renewed(self, deadline_s: float, stop: list[Holding]) -> None:
        """Process the reply to a report: the new end of the lease, and the runs to stop."""
        self.post(partial(self._renew, deadline_s, stop))

    def reclaimed(self, deadline_s: float) -> None:
        """Record that the host is taken away at `deadline_s` (boot-time clock)."""
        self.post(partial(self._reclaim.announced, deadline_s))
        self._outputs.hurry()

    def start_command(self, order: protocol.Execute, streams: Sequence[int], env: Mapping[str, str]) -> None:
        """Have the launcher start a command beside a rank, and close the descriptors in `streams`."""

        def start() -> None:
            try:
                self._link.execute(order, streams, env)
            finally:
                for descriptor in streams:
                    os.close(descriptor)

        self.post(start)

    def end_command(self, command: str) -> None:
        """Have the launcher kill a command beside a rank."""
        self.post(partial(self._link.send, protocol.EndCommand(command)))

    def refused(self, error: Refused) -> None:
        """Make the loop raise the error, because the service refuses this agent."""

        def fail() -> None:
            raise error

        self.post(fail)

    # The loop.

    def run_once(self) -> None:
        """Wait for an event, and act on it.

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
            self._events.messages(run)
        self._watcher.check(self._runs.with_processes())
        self._replace_launcher()
        self._reclaim.stop_what_is_due(self._runs)
        self._act()

    def idle(self) -> bool:
        """Return True if no run is left."""
        return not self._runs

    def stop_all(self, grace_s: float) -> None:
        """Stop every run, as a `stop` command with a checkpoint does."""
        for run in self._runs:
            run.explain(orders.AGENT_ENDS)
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
            if action.kind is ActionKind.RELEASE:
                self._release(run)
            elif self._link.ready:  # otherwise it is due again once a launcher is connected
                self._order(action.kind, run)

    def _order(self, kind: ActionKind, run: Run) -> None:
        match kind:
            case ActionKind.START:
                self._start(run)
            case ActionKind.TERMINATE:
                orders.announce_stop(run.folder, run.state.kill_at_s, run.why)
                self._link.send(protocol.Terminate(run.name))
                run.state = replace(run.state, terminated=True)
            case ActionKind.KILL:
                self._link.send(protocol.Kill(run.name))
                run.state = replace(run.state, killed=True)
        run.save()

    def _start(self, run: Run) -> None:
        try:
            plan = launch_plan(run.command, run.folder, self._host, hosts_stores=self._link.hosts_stores)
            write_plan(plan, run.folder)
            self._link.start(run.name, self._secrets.env(run.name))
        except OSError as error:
            self._events.start_failed(run, str(error), retryable=True)
            run.state = replace(run.state, phase=Phase.GONE)
            return
        run.state = replace(run.state, phase=Phase.LIVE)

    def _release(self, run: Run) -> None:
        wake = partial(self.post, self._act)
        if not self._outputs.is_settled(run.command, run.folder, wanted=not run.unwanted, wake=wake):
            return
        newest = max(run.state.generation, run.release_as)
        others = len(self._runs.held(run.state.job_id, newest=newest)) > 1
        self._events.released(run, older_stay=others)
        run.folder.ended.touch()
        self._shipper.over(run.folder.name)
        self._runs.remove(run)
        self._outputs.released(run.command)
        _log.info("released", run=run.folder.name)

    def _execute(self, command: AnyCommand) -> None:
        with bound_contextvars(command=command.command_id):
            try:
                match command:
                    case RunCommand():
                        self._execute_run(command)
                    case OrderCommand():
                        self._execute_order(command)
                    case StopCommand():
                        self._execute_stop(command)
                    case ExecCommand():
                        run = self._runs.named(f"{command.job_id}/{command.generation}")
                        self._executions.begin(command, run, self)
                    case ExecInput():
                        self._executions.give(command)
                        return  # reports about the command acknowledge it
            except ValueError as error:
                _log.error("ignored a command", error=str(error))
        self._outbox.acknowledge(command.command_id)

    def _execute_run(self, command: RunCommand) -> None:
        job = self._state.job(command.job_id)
        fence = read_fence(job)
        reason = rules.refusal(fence, command.generation)
        if reason:
            _log.info("ignored a run", job=command.job_id, generation=command.generation, reason=reason)
            self._release_unheld(command.job_id, command.generation, command.generation)
            return
        run = new_run(self._state, command)
        orders.deliver(run.folder)
        write_fence(job, replace(fence, run=command.generation))
        _log.info("run", run=run.folder.name, name=command.job_name, ranks=len(command.ranks))
        self._add(run)

    def _execute_order(self, command: OrderCommand) -> None:
        runs = [run for run in self._runs.held(command.job_id) if run.state.phase is not Phase.GONE]
        if not runs:
            _log.info("ignored an order", job=command.job_id, generation=command.generation)
            return
        orders.store_newest(self._state.job(command.job_id).order, orders.order_of(command))
        for run in runs:
            orders.deliver(run.folder)
        self._outputs.ordered(command)
        self._watcher.ordered(runs, command)
        self._switching_until_s = boot_s() + _SWITCH_S
        _log.info("order", job=command.job_id, generation=command.generation, members=len(command.members))

    def _execute_stop(self, command: StopCommand) -> None:
        job = self._state.job(command.job_id)
        write_fence(job, replace(fence := read_fence(job), stop=max(fence.stop, command.generation)))
        for run in self._runs.held(command.job_id, newest=command.generation, oldest=command.oldest):
            _log.info("stop", run=run.folder.name, mode=command.mode, grace_s=command.grace_s)
            run.release_as = max(run.release_as, command.generation)
            wait_s = self._watcher.request_stacks(run) if command.dump_stacks else 0.0
            run.explain(command.why)
            self._stop(run, kill=command.mode == "kill", grace_s=command.grace_s, wait_s=wait_s)
        self._release_unheld(command.job_id, command.generation, command.oldest)

    def _release_unheld(self, job_id: str, generation: int, oldest: int) -> None:
        """Report that the runs in a command hold no slots here, because the service may wait for their end."""
        if not self._runs.held(job_id, newest=generation):
            self._events.nothing_held(job_id, generation)
        elif not self._runs.held(job_id, newest=generation, oldest=oldest):
            self._events.slots_free(job_id, generation, [slot.index for slot in self._host.slots])

    def _stop(self, run: Run, *, kill: bool, grace_s: float, wait_s: float = 0.0) -> None:
        run.state = rules.stopped(run.state, kill=kill, grace_s=grace_s, now_s=boot_s() + wait_s)
        run.save()

    def _renew(self, deadline_s: float, stop: list[Holding]) -> None:
        for held in stop:
            for run in self._runs.held(held.job_id, newest=held.generation, oldest=held.generation):
                if not run.state.killed:
                    _log.info("the service has assigned this run elsewhere: stopping it", run=run.folder.name)
                    run.unwanted = True
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
        self._outputs.add(run.command, run.folder)
        self._shipper.watch(run.logged)
        if run.state.phase is Phase.PREPARING:
            threading.Thread(target=self._prepare, args=[run], daemon=True).start()
        else:
            self._secrets.recall(run.logged, self._shipper.hurry)
            self._outputs.resume(run.folder)
            self._read_run_files(run)

    def _prepare(self, run: Run) -> None:
        """Prepare the run; the body of a thread, because downloads may take long."""
        try:
            problem = self._preparer.prepare(
                run.command, run.folder, lambda: run.state.ending or run.folder.ended.exists()
            )
        except Exception as error:  # noqa: BLE001  # any error is reported to the service
            _log.exception("preparing failed", run=run.folder.name)
            problem = CannotPrepare(f"The run could not be prepared: {error}", retryable=True)
        self.post(partial(self._prepared, run, problem))

    def _prepared(self, run: Run, problem: CannotPrepare | None) -> None:
        if problem is None:
            run.state = replace(run.state, phase=Phase.READY)
        elif run in self._runs:
            self._events.start_failed(run, problem.message, retryable=problem.retryable)
            run.state = replace(run.state, phase=Phase.GONE)

    def _read_run_files(self, run: Run) -> None:
        """Process the files that the launcher wrote about the run."""
        gone = run.folder.gone.exists()  # read once, and first: everything else is written before it
        started = read_json(run.folder.started)
        if started is not None and any(run.folder.pid(slot.rank).exists() for slot in run.command.ranks):
            self._events.started(run, started["how"])
        if self._events.exits(run, gone=gone):
            run.state = rules.after_failure(run.state, boot_s())
            run.save()
        self._shipper.hurry()
        if gone:
            if not run.start_reported:
                self._events.start_failed(run, "The launcher could not start the ranks.", retryable=True)
            run.state = replace(run.state, phase=Phase.GONE)
        else:
            self._release_slots(run)

    def _release_slots(self, run: Run) -> None:
        """Release slots of a live run whose ranks are gone."""
        freed = self._events.slots_released(run)
        if freed:
            run.state = replace(run.state, slots=run.state.slots - freed)
            run.save()
            self._runs.publish()

    # The launcher.

    def _connect(self) -> bool:
        if self._link.connection is not None:
            return True
        if (connection := self._link.connect()) is not None:
            self._selector.register(connection, selectors.EVENT_READ)
        return connection is not None

    def _read_launcher(self) -> None:
        connection = self._link.connection
        messages = self._link.receive()
        if messages is None and connection is not None:
            self._selector.unregister(connection)
            _log.warning("the launcher is gone")
        for message in messages or []:
            self._handle_message(message)

    def _handle_message(self, message: protocol.Message) -> None:
        match message:
            case protocol.Welcome(_, hosts_stores, kept):
                _log.info("launcher ready", torch=hosts_stores, runs=len(kept))
                self._link.send(protocol.Lease(self._deadline_s))
                for run in self._runs.with_processes():
                    self._resume(run, kept)
            case protocol.Started(name, how, error, retryable):
                run_started = self._runs.named(name)
                if run_started is not None and error:
                    self._events.start_failed(run_started, error, retryable=retryable)
                elif run_started is not None:
                    self._events.started(run_started, how)
            case protocol.Changed(name):
                if (run_changed := self._runs.named(name)) is not None:
                    self._read_run_files(run_changed)
            case _:
                _log.warning("ignored an unknown message of the launcher", message=type(message).__name__)

    def _resume(self, run: Run, kept: Sequence[str]) -> None:
        """Resume a live run with a newly connected launcher, which has processes of the runs in `kept`."""
        if run.folder.name in kept:
            run.state = replace(run.state, killed=False)  # an order on a lost connection is repeated
        elif not run.folder.gone.exists():
            run.state = replace(run.state, phase=Phase.READY)  # the order to start it was lost
            return
        self._read_run_files(run)

    def _replace_launcher(self) -> None:
        """Shut down a launcher with outdated code as soon as it has no runs."""
        if self._link.outdated and not self._runs.with_processes():
            _log.info("replacing the launcher: the code has changed")
            if (connection := self._link.connection) is not None:
                self._selector.unregister(connection)
            self._link.shut_down()
            self._link.close()
