"""Composition root: the module that connects all parts of the agent."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from headway.contract import runtime
from headway.contract.agents import JoinRequest, SlotInfo
from headway.contract.standstills import Standstill
from headway.contract.values.redaction import without_credentials
from headway.errors import HeadwayError
from headway.log_lines import log_as_json, wants_json
from headway.processes import keep_to_itself
from headway.proxies import loopback_exemptions
from headway.standstill import LoopWatch
from headway.streams import make_streams_tolerant
from worker_agent import VERSION
from worker_agent.devices import inventory
from worker_agent.devices.claims import DeviceClaims
from worker_agent.devices.nvml import NvmlDevices
from worker_agent.devices.probing import Prober
from worker_agent.devices.watch import DeviceWatcher
from worker_agent.environments.building import Builder
from worker_agent.environments.cache import EnvironmentCache
from worker_agent.host.folders import StateFolder, read_json, write_json
from worker_agent.host.identity import Identity, identify
from worker_agent.host.metadata import Metadata
from worker_agent.host.network import interface_env
from worker_agent.host.pilot import Pilot
from worker_agent.isolation import control_groups, engines
from worker_agent.isolation.modes import Isolation, choose
from worker_agent.isolation.scratch import close_scratch, remove_abandoned
from worker_agent.isolation.self_check import mark_withheld, run_self_check
from worker_agent.link.commands import CommandReader
from worker_agent.link.credentials import NodeKeys
from worker_agent.link.notices import NoticeWatcher
from worker_agent.link.outbox import Outbox
from worker_agent.link.reporter import Reporter
from worker_agent.link.secrets import RunSecrets
from worker_agent.link.service_api import Membership, ServiceApi
from worker_agent.link.storage_keys import StorageKeys, signing_place
from worker_agent.logs.shipping import LogShipper
from worker_agent.options import Options, parse
from worker_agent.output.calling import Caller
from worker_agent.output.keeper import Outputs
from worker_agent.reach.reaching import Reaching
from worker_agent.runs.bundles import BundleCache
from worker_agent.runs.environment import base_env
from worker_agent.runs.executions import Executions
from worker_agent.runs.launcher_link import LauncherLink
from worker_agent.runs.preparing import Host, Preparer
from worker_agent.runs.records import tidy
from worker_agent.supervisor import Supervisor
from worker_agent.telemetry.facts import StateSources
from worker_agent.telemetry.setup import RememberedHealth, Telemetry, WatchedCommands, WatchedLogs

_log = structlog.get_logger()

EXIT_REFUSED = 78
_OWN_JOBS_GRACE_S = 10.0
_LAST_REPORTS_S = 2.0
"""Seconds for the last reports to reach the service."""
_TIDY_EVERY_S = 60.0


def main(argv: Sequence[str]) -> int:
    """Run the agent until a signal, and return its exit code."""
    make_streams_tolerant()
    os.environ.update(loopback_exemptions(os.environ))
    options = parse(argv, os.environ)
    try:
        configure_logging(os.environ, options.name)
    except HeadwayError as error:
        sys.stderr.write(f"headway agent: {error}\n")
        return EXIT_REFUSED
    umask = keep_to_itself()
    if sys.platform != "linux":
        sys.stderr.write("headway agent: the agent needs Linux, for its process groups and signals.\n")
        return EXIT_REFUSED
    try:
        Agent(replace(options, umask=umask if options.umask is None else options.umask)).run()
    except HeadwayError as error:
        sys.stderr.write(f"headway agent: {error}\n")
        return EXIT_REFUSED
    return 0


class Agent:
    """All parts of one agent, connected with each other."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._state = StateFolder(options.state_dir)
        self._state.make()
        self._identity = identify(self._state, options.name, options.ports)
        self._claims = DeviceClaims(options.name, shared=options.share_gpus)
        slots = _slots(options, self._state, self._claims)
        environment = base_env(interface_env(options.address, options.url) | os.environ, options.pass_env)
        if options.pilot is not None:
            environment[runtime.ENV_HOST_SIGNALS] = "1"
        isolation = _isolation(options, self._state, environment)
        slots = mark_withheld(slots, isolation)
        engine = engines.find(os.environ)
        self._stopping = threading.Event()
        self._telemetry = Telemetry()
        emit, membership = self._telemetry.emit, Membership()
        api = ServiceApi(options.url, membership)
        keys = NodeKeys(api, membership, self._state.credentials, options.token)
        self._outbox = Outbox(self._state.outbox, emit=emit)
        secrets = RunSecrets(api.secrets)
        place = signing_place(api.url, os.environ)
        storage = StorageKeys(api.storage_access, place, self._state, self._stopping)
        self._shipper = LogShipper(WatchedLogs(api, emit), self._stopping, secrets=secrets)
        self._link = LauncherLink(self._state, environment)
        bundles = BundleCache(self._state.bundles, api.download_bundle)
        builder = Builder(isolation, os.environ, self._stopping)
        self._environments = EnvironmentCache(self._state, builder, os.environ, options.environments_bytes)
        outputs = self._outputs(Caller(isolation, environment, secrets))
        self._supervisor = Supervisor(
            state=self._state,
            link=self._link,
            outbox=self._outbox,
            shipper=self._shipper,
            preparer=Preparer(
                bundles, isolation, engine, secrets, storage, outputs, self._environments, self._stopping
            ),
            secrets=secrets,
            outputs=outputs,
            executions=Executions(api, secrets),
            host=Host(slots, inventory.cpu_count(), environment, isolation, engine),
        )
        prober = self._prober(slots, environment)
        reaching = Reaching(options, self._identity, api, membership, self._outbox, self._stopping)
        health = RememberedHealth(slots, partial(inventory.with_health, slots))
        self._reporter = Reporter(
            api=api,
            keys=keys,
            membership=membership,
            outbox=self._outbox,
            request=_join_request(options, reaching, self._identity, slots, engine, isolation),
            holding=self._supervisor.holding,
            health=health.read,
            probe=prober.request,
            reach=reaching.prober.request,
            listener=self._supervisor,
            stopping=self._stopping,
            emit=emit,
        )
        self._bodies = [self._reporter.run, self._commands(membership, keys).run, self._shipper.run]
        self._bodies += [self._tidy, prober.run, storage.run, outputs.run, reaching.listener.run]
        self._bodies += _device_monitors(slots, self._outbox, self._stopping)
        self._pilot = None if options.pilot is None else Pilot(options.pilot)
        self._notices = self._notice_watcher(options.metadata_url)
        if self._notices is not None:
            self._bodies.append(self._notices.run)
        self._start_telemetry(health)

    def _prober(self, slots: Sequence[SlotInfo], environment: Mapping[str, str]) -> Prober:
        return Prober(
            slots=slots,
            outbox=self._outbox,
            first_times=self._state.probes,
            environment=environment,
            stopping=self._stopping,
        )

    def _outputs(self, caller: Caller) -> Outputs:
        node = hashlib.sha256(self._identity.instance.encode()).hexdigest()[:12]
        report = partial(self._outbox.add, urgent=True)
        return Outputs(caller, report, node, self._stopping)

    def _commands(self, membership: Membership, keys: NodeKeys) -> CommandReader:
        emit, supervisor = self._telemetry.emit, self._supervisor
        watched = WatchedCommands(supervisor.handle, supervisor.holding, emit)
        return CommandReader(membership, keys.renew, watched.handle, self._stopping, emit)

    def _start_telemetry(self, health: RememberedHealth) -> None:
        """Serve metrics and send traces, if configured."""
        self._telemetry.trace(self._options.name)
        if self._options.metrics_listen is not None:
            sources = StateSources(
                slots=health.last,
                holding=self._supervisor.holding,
                waiting=self._outbox.depth,
                state=self._state,
            )
            self._telemetry.serve(self._options.metrics_listen, sources)

    def _notice_watcher(self, metadata_url: str | None) -> NoticeWatcher | None:
        source = self._pilot or (None if metadata_url is None else Metadata(metadata_url))
        if source is None:
            return None
        return NoticeWatcher(
            source=source,
            outbox=self._outbox,
            reclaimed=self._supervisor.reclaimed,
            stopping=self._stopping,
        )

    def run(self) -> None:
        """Run the agent until SIGTERM or SIGINT. In a pilot or a pod, SIGTERM is a notice: it runs until no job is left.

        Raises:
            HeadwayError: the service refuses this agent, or the launcher does not start.
        """
        leaving = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._supervisor.post(leaving.set))
        if self._pilot is not None:
            signal.signal(signal.SIGTERM, lambda *_: self._supervisor.post(self._take_notice))
        for body in self._bodies:
            self._spawn(body)
        watch = LoopWatch(f"agent {self._options.name}", self._supervisor.post, self._stood_still)
        watch.start()
        _log.info(
            "agent started", name=self._options.name, url=self._options.url, state=str(self._state.path)
        )
        while not leaving.is_set() and not self._is_over():
            self._supervisor.run_once()
        if self._options.own_jobs:
            self._end_jobs()
        watch.stop()
        self._stopping.set()
        self._outbox.close()
        self._telemetry.close()
        _log.info("agent ended", runs_left=len(self._supervisor.holding()))

    def _stood_still(self, one: Standstill) -> None:
        _log.warning(
            "the main loop stood still", stood_s=one.stood_s, own_s=one.own_s, frames=list(one.stack)
        )
        self._telemetry.emit(one)

    def _take_notice(self) -> None:
        assert self._pilot is not None
        assert self._notices is not None
        self._pilot.terminated()
        self._notices.run_once()  # before an idle agent ends

    def _is_over(self) -> bool:
        """Return whether its engine ends this pilot, and no job is left on it."""
        return self._pilot is not None and self._pilot.ends and self._supervisor.idle()

    def _end_jobs(self) -> None:
        """Stop the ranks, wait until the service has the reports, and shut the launcher down."""
        self._supervisor.stop_all(_OWN_JOBS_GRACE_S)
        give_up_s = time.monotonic() + _OWN_JOBS_GRACE_S + _LAST_REPORTS_S
        while not self._supervisor.idle() and time.monotonic() < give_up_s:
            self._supervisor.run_once()
        self._link.shut_down()
        if self._supervisor.idle():
            close_scratch(self._state)
        give_up_s = time.monotonic() + _LAST_REPORTS_S
        while not self._outbox.empty() and time.monotonic() < give_up_s:
            time.sleep(0.01)

    def _tidy(self) -> None:
        for folder in remove_abandoned(time.time()):
            _log.info("removed temporary files of an earlier agent", folder=str(folder))
        while True:
            tidy(self._state, time.time())
            self._environments.prune()
            if self._stopping.wait(_TIDY_EVERY_S):
                return

    def _spawn(self, body: Callable[[], None]) -> None:
        """Run `body` in a thread. An error in it ends the agent, which is safe because the ranks continue."""

        def guarded() -> None:
            try:
                body()
            except Exception as error:  # noqa: BLE001  # passed to the main thread, which raises it
                self._supervisor.post(partial(_raise, error))

        threading.Thread(target=guarded, daemon=True).start()


def configure_logging(env: Mapping[str, str], node: str) -> None:
    """Configure logs on standard error: readable on a terminal, else JSON lines, unless the environment chooses.

    Raises:
        HeadwayError: the environment asks for an unknown format.
    """
    tty = sys.stderr.isatty()
    if wants_json(env, default=not tty):
        log_as_json(sys.stderr, partial(_with_ids, node))
        return
    renderer = structlog.dev.ConsoleRenderer(colors=tty, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            lambda logger, name, event: without_credentials(str(renderer(logger, name, event))),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _with_ids(node: str, _: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the ids that the service's log lines use: the node, and the job and generation of a run."""
    event["node_name"] = node
    job, slash, generation = str(event.get("run", "")).partition("/")
    if slash and generation.isdecimal():
        event.update(job=job, generation=int(generation))
    return event


def _join_request(
    options: Options,
    reaching: Reaching,
    identity: Identity,
    slots: list[SlotInfo],
    engine: engines.DetectedEngine,
    isolation: Isolation,
) -> JoinRequest:
    return JoinRequest(
        name=options.name,
        instance=identity.instance,
        address=options.address,
        first_port=identity.ports.first,
        last_port=reaching.last_port,
        slots=slots,
        agent_version=VERSION,
        cpus=inventory.cpu_count(),
        memory_bytes=inventory.memory_bytes(),
        container_engine=engine.engine,
        labels=dict(options.labels),
        host=reaching.facts.model_copy(update={"isolation": isolation.facts}),
    )


def _slots(options: Options, state: StateFolder, claims: DeviceClaims) -> list[SlotInfo]:
    """Return the slots to offer, and store the slot number of each device.

    Raises:
        HeadwayError: the host has fewer slots than requested, or other agents offer its GPUs.
    """
    known = [SlotInfo.model_validate(one) for one in read_json(state.slots) or []]
    slots = inventory.find_slots(options.slots, options.device_kind, known, claim=claims.claim)
    write_json(state.slots, [slot.model_dump(mode="json", exclude={"health"}) for slot in slots])
    return slots


def _isolation(options: Options, state: StateFolder, environment: Mapping[str, str]) -> Isolation:
    """Return the tested isolation of jobs on this host, and log once what it does not prevent.

    Raises:
        HeadwayError: the requested isolation does not work on this host.
    """
    groups = control_groups.find(state.path)
    isolation = run_self_check(
        choose(
            options.isolation,
            state,
            environment,
            options.user_ids,
            groups,
            options.private,
            umask=options.umask,
            all_calls=options.all_calls,
        )
    )
    if not isolation.broken:
        _log.info("jobs are kept apart", by=isolation.kind, not_prevented=list(isolation.lacks))
    return isolation


def _device_monitors(
    slots: Sequence[SlotInfo], outbox: Outbox, stopping: threading.Event
) -> list[Callable[[], None]]:
    """Return the bodies of the threads that monitor GPUs; none on a host without GPUs."""
    import pynvml  # noqa: PLC0415  # imported on use: pynvml loads the driver's library

    watcher = DeviceWatcher(devices=NvmlDevices(pynvml), slots=slots, outbox=outbox, stopping=stopping)
    return [watcher.poll, watcher.listen] if watcher.watches else []


def _raise(error: Exception) -> None:
    raise error
