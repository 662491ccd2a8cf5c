"""The composition root: the only module that names concrete adapters."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import structlog
import uvloop
from fastapi import FastAPI
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from headway.contract.standstills import Standstill
from headway.standstill import LoopWatch
from headway.tls import trusted
from headway.tracing import Sends
from service.adapters.keyring import ring_of
from service.adapters.oidc import provider_of
from service.adapters.postgres.database import Database, trust
from service.adapters.postgres.engine.clock import SAMPLE_EVERY_S, DatabaseClock
from service.adapters.postgres.engine.leadership import PostgresLeadership
from service.adapters.postgres.engine.schema import migrate, schema_problem
from service.adapters.provider_choice import installed_providers
from service.adapters.redis import RedisCommandQueue, RedisStandstills, RedisWakeUps, connect, stream_of
from service.adapters.redis_acl import RedisAcl, SharedQueue
from service.adapters.redis_executions import RedisExecutions
from service.adapters.simulator import ProcessSimulator
from service.adapters.storage import ObjectStorage
from service.adapters.storage_access import storage_keys, storage_signer
from service.adapters.webhooks import HttpSender
from service.api.app import create_app
from service.api.http.context import ApiContext, new_id
from service.api.http.pressure import Lateness
from service.api.http.server import CERTIFICATE_LOOKED_AT_EVERY_S, server_of
from service.console.install import install_console
from service.domain.life.life import Launch
from service.domain.policies.registry import DEFAULT, POLICIES, Policies
from service.domain.rental.fleet import Patience
from service.domain.rental.rental_targets import RentalRules
from service.domain.shared.errors import HeadwayServiceError
from service.garbage import spare
from service.log import configure_log
from service.loops.identities import keep
from service.loops.leader import lead
from service.loops.renting import Rents
from service.loops.runner import Loop, run_loop
from service.loops.scheduler import Intervals, Scheduler
from service.plugins import installed_policies
from service.settings import Settings, SettingsError, read_settings
from service.telemetry import collector_of, telemetry
from service.usecases.identity.identify import Identities
from service.usecases.nodes.expire import API_FRESH_S
from service.usecases.nodes.links import ProbePlan
from service.usecases.notifications.deliver import Deliveries
from service.usecases.ports.credentials import NodeAccess
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.rental import Provider
from service.usecases.ports.transactions import Transactions
from service.usecases.rental.offers import OfferBook
from service.usecases.rental.rent import Renting

log = structlog.get_logger()

_BEAT_S = 2.0
_PROBES_S = 1.0
_STANDSTILLS_S = 2.0
_SIMULATION_LIMIT_S = 900.0


def wall_now() -> datetime:
    """Return this machine's UTC time, for providers. All other code uses `Service.clock`."""
    return datetime.now(UTC)


class Service:
    """The adapters of one process, and the objects built on them."""

    def __init__(
        self,
        settings: Settings,
        providers: Sequence[Provider] = (),
        spans: Sends | None = None,
        policies: Policies = POLICIES,
    ) -> None:
        self.settings = settings
        self.providers = providers
        self.policies = policies
        trust(settings.http.ca_file)
        self.redis = connect(settings.redis_url, settings.http.ca_file)
        self.wake_ups = RedisWakeUps(self.redis)
        self.standstills = RedisStandstills(self.redis)
        self.process_id = secrets.token_hex(8)
        self.holder = f"headway {socket.gethostname()[:24]} {os.getpid()} {self.process_id}"
        """Name of this process as leader and in the database's list of sessions."""
        self.telemetry = telemetry(lambda: self.clock.now(), spans)  # noqa: PLW0108  # the clock is created below
        self.database = Database(
            settings.database_url,
            self._send_wake_up,
            holder=self.holder,
            share_half_life_s=settings.share_half_life_s,
            contention=settings.contention,
            tell=self.telemetry.tell,
        )
        self.clock = DatabaseClock(self.database.time)
        acl = RedisAcl(self.redis, settings.agent_redis_url)
        self.queue_access = acl if settings.redis_acl else SharedQueue(settings.agent_redis_url)
        self.storage_keys = storage_keys(settings, os.environ)
        self.storage_signer = storage_signer(settings, os.environ)
        self.storage = ObjectStorage(settings.storage_url)
        self.launch = Launch(checkpoint_root=f"{settings.storage_url}/checkpoints")
        self._lateness = Lateness(math.inf)
        """Lateness of reports to the application."""
        self._beat_s = -math.inf
        """Monotonic time up to which the database knows the lateness."""
        self._identities: Identities | None = None
        """Identities of the application."""
        self._probe_plan: ProbePlan | None = None
        """Probes that the application asks agents for."""

    async def check(self) -> None:
        """Raise an error if a store cannot be reached or its schema is old.

        Raises:
            SettingsError: the problem and its remedy.
        """
        problems = await self.problems()
        problem = await self.queue_access.problem()
        problems += [problem] if problem else []
        if problems:
            raise SettingsError("; ".join(problems))
        await self.clock.look()
        async with self.database.begin() as tx:
            chosen = (await tx.rounds.policy()).name
        if chosen not in self.policies:
            what_next = "install the package that has the policy, or choose another one: headway policy NAME"
            log.error("policy_missing", policy=chosen, instead=DEFAULT, what_next=what_next)

    async def problems(self) -> list[str]:
        """Return the problems of the stores. Implements `service.api.http.context.Readiness`."""
        problems = []
        try:
            problem = await schema_problem(self.database.engine)
            problems += [problem] if problem else []
        except (SQLAlchemyError, asyncpg.PostgresError, OSError) as error:
            problems.append(f"Postgres does not answer at HEADWAY_DATABASE_URL: {_brief(error)}")
        try:
            await self.redis.ping()
        except (RedisError, OSError) as error:
            problems.append(f"Redis does not answer at HEADWAY_REDIS_URL: {_brief(error)}")
        return problems

    def app(self) -> FastAPI:
        """Return the HTTP application with its API and pages."""
        settings = self.settings
        context = ApiContext(
            transactions=self.database,
            storage=self.storage,
            wake_ups=self.wake_ups,
            readiness=self,
            standstills=self.standstills,
            executions=RedisExecutions(self.redis),
            policies=self.policies,
            launch=self.launch,
            api_token=settings.api_token,
            join_token=settings.join_token,
            agent_redis_url=settings.agent_redis_url,
            access=NodeAccess(queue=self.queue_access, storage=self.storage_keys, signer=self.storage_signer),
            stream_of=stream_of,
            lease_s=settings.lease_s,
            report_every_s=min(settings.silence_s / 4, settings.lease_s / 4, 3.0),
            silence=settings.silence,
            max_bundle_bytes=settings.max_bundle_bytes,
            usd_per_slot_h=settings.usd_per_slot_h,
            now=self.clock.now,
            offers=OfferBook(self.providers),
            rental=self.rental_rules(),
            http=settings.http,
            provider=provider_of(settings.http),
            keys=ring_of(settings.secrets),
            registry=self.telemetry.registry,
            begin_trace=self.telemetry.begin_trace,
        )
        app = create_app(context, self._api_background)
        self._lateness = app.state.gates.lateness
        self._identities = app.state.identities
        self._probe_plan = app.state.heartbeats.links
        install_console(app, context)
        return app

    async def _send_wake_up(self, wake_up: WakeUp, about: str) -> None:
        """Send a wake-up after a commit. Revoked access takes effect here at once, and elsewhere soon after."""
        if wake_up is WakeUp.ACCESS and self._identities is not None:
            self._identities.forget()
        await self.wake_ups.wake(wake_up, about)

    @asynccontextmanager
    async def _api_background(self) -> AsyncIterator[None]:
        beat = Loop(name="beat", run_once=self.beat, min_interval_s=_BEAT_S, max_interval_s=_BEAT_S)
        async with self.wake_ups.running(), self.wake_ups.heard((WakeUp.ACCESS, "")) as access_changed:
            assert self._identities is not None, "this is the application's background"
            assert self._probe_plan is not None, "this is the application's background"
            probes = Loop(
                name="probes",
                run_once=self._probe_plan.refresh,
                min_interval_s=_PROBES_S,
                max_interval_s=_PROBES_S,
                rests=2.0,
            )
            tasks = [
                asyncio.create_task(run_loop(beat, asyncio.Event())),
                asyncio.create_task(run_loop(probes, asyncio.Event())),
                asyncio.create_task(keep(self._identities, access_changed)),
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def beat(self) -> None:
        """Store that this API is up, and whether it was late since the last call."""
        began_s = time.monotonic()
        async with self.database.begin() as tx:
            late = self._lateness.was_late(self._beat_s)
            await tx.nodes.beat(self.process_id, self.clock.now(), API_FRESH_S, late=late)
        self._beat_s = began_s

    @asynccontextmanager
    async def keeping_time(self) -> AsyncIterator[None]:
        """Read the database's clock periodically until the block ends."""
        looks = Loop(
            name="clock",
            run_once=self.clock.look,
            min_interval_s=SAMPLE_EVERY_S,
            max_interval_s=SAMPLE_EVERY_S,
        )
        looking = asyncio.create_task(run_loop(looks, asyncio.Event()))
        try:
            yield
        finally:
            looking.cancel()

    @asynccontextmanager
    async def watching_itself(self, role: str) -> AsyncIterator[None]:
        """Watch this process's loop until the block ends: log, count and share each period in which it stood still."""
        loop = asyncio.get_running_loop()
        name = f"{role} on {socket.gethostname()[:24]}, process {os.getpid()}"
        watch = LoopWatch(name, loop.call_soon_threadsafe, self.telemetry.standstill)

        unshared: list[Standstill] = []

        async def share() -> None:
            unshared.extend(watch.take())
            if unshared:
                await self.standstills.add(unshared)
                unshared.clear()

        sharing = Loop(
            name="standstills",
            run_once=share,
            min_interval_s=_STANDSTILLS_S,
            max_interval_s=_STANDSTILLS_S,
        )
        task = asyncio.create_task(run_loop(sharing, asyncio.Event()))
        watch.start()
        try:
            yield
        finally:
            watch.stop()
            task.cancel()

    async def schedule(self) -> None:
        """Run the loops whenever this process is the leader, until cancelled."""
        leadership = PostgresLeadership(self.settings.database_url, self.holder)
        async with self.wake_ups.running():
            await lead(leadership, lambda term: self.scheduler(term).work())

    def scheduler(self, term: int) -> Scheduler:
        """Return the scheduler of one term as leader, without state of earlier terms."""
        transactions = self.database.of_term(term)
        return Scheduler(
            transactions=transactions,
            queue=RedisCommandQueue(self.redis),
            access=self.queue_access,
            storage=self.storage,
            wake_ups=self.wake_ups,
            simulator=ProcessSimulator(_SIMULATION_LIMIT_S),
            launch=self.launch,
            intervals=Intervals(silence=self.settings.silence, keep_days=self.settings.keep_days),
            now=self.clock.now,
            look_at_clock=self.clock.look,
            clock_s=time.perf_counter,
            usd_per_slot_h=self.settings.usd_per_slot_h,
            new_round_id=lambda: f"r{secrets.token_hex(8)}",
            policies=self.policies,
            rents=self.rents(transactions),
            deliveries=self.deliveries(transactions),
        )

    def deliveries(self, transactions: Transactions) -> Deliveries:
        """Return the sender of the messages of webhooks."""
        http = self.settings.http
        return Deliveries(
            transactions=transactions,
            sender=HttpSender(http.webhook_networks, trusted(str(http.ca_file) if http.ca_file else None)),
            keys=ring_of(self.settings.secrets),
            public_url=http.public_url,
            now=self.clock.now,
            chance=random.random,
        )

    def rental_rules(self) -> RentalRules:
        """Return the limits on rented machines."""
        rental = self.settings.rental
        return RentalRules(
            max_machines=rental.max_machines, max_usd_per_h=rental.max_usd_per_h, idle_s=rental.idle_s
        )

    def rents(self, transactions: Transactions) -> Rents:
        """Return the loop that rents machines. Without providers, it only reports orphaned machines."""
        rental = self.settings.rental
        return Rents(
            transactions=transactions,
            renting=Renting(
                providers=self.providers,
                rules=self.rental_rules(),
                patience=Patience(join_s=rental.join_s),
                public_url=rental.public_url,
                join_secret=self.settings.join_token,
                new_machine_id=lambda: new_id("m", self.clock.now()),
                policies=self.policies,
            ),
            launch=self.launch,
            now=self.clock.now,
            usd_per_slot_h=self.settings.usd_per_slot_h,
            every_s=rental.every_s,
        )

    async def close(self) -> None:
        """Close the connections to all stores."""
        await self.database.close()
        await self.redis.aclose()
        self.telemetry.close()


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}".rstrip(": ")


async def run_migrations(service: Service) -> None:
    """Migrate the database: the role `migrate`."""
    try:
        await migrate(service.database.engine)
    except OSError as error:
        raise SettingsError(f"Postgres does not answer at HEADWAY_DATABASE_URL: {_brief(error)}") from error


async def run_api(service: Service) -> None:
    """Serve HTTP until told to stop: the role `api`."""
    await service.check()
    spare()
    settings = service.settings
    server, certificate = server_of(service.app(), settings.http, host=settings.host, port=settings.port)
    renewing = Loop(
        name="certificate",
        run_once=certificate.renew,
        min_interval_s=CERTIFICATE_LOOKED_AT_EVERY_S,
        max_interval_s=CERTIFICATE_LOOKED_AT_EVERY_S,
    )
    task = asyncio.create_task(run_loop(renewing, asyncio.Event()))
    try:
        async with service.watching_itself(
            "api"
        ):  # from here on, since building the application takes longer
            await server.serve()
    finally:
        task.cancel()


async def run_scheduler(service: Service) -> None:
    """Lead or wait until told to stop: the role `scheduler`."""
    await service.check()
    spare()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    scheduling = asyncio.create_task(service.schedule())
    stopped = asyncio.create_task(stopping.wait())
    with service.telemetry.exposed(service.settings.metrics_listen):
        async with service.watching_itself("scheduler"):
            await _until_one_ends(scheduling, stopped)


async def run_all(service: Service) -> None:
    """Run the API and the scheduler in one process: the role `all`."""
    await service.check()
    await _until_one_ends(asyncio.create_task(service.schedule()), asyncio.create_task(run_api(service)))


async def _until_one_ends(*tasks: asyncio.Task[Any]) -> None:
    """Wait for the first task to end, cancel the others, and raise the error of the first."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


ROLES = {"migrate": run_migrations, "api": run_api, "scheduler": run_scheduler, "all": run_all}


def main(argv: Sequence[str]) -> int:
    """Run `python -m service ROLE`. Return 0, or 1 after printing an error with a remedy."""
    parser = argparse.ArgumentParser(prog="python -m service", description="The Headway service.")
    parser.add_argument(
        "role", choices=sorted(ROLES), help="migrate once, then run api and scheduler, or all"
    )
    role = parser.parse_args(argv).role
    try:
        configure_log(os.environ)
        settings = read_settings(os.environ)
        providers = installed_providers(settings.rental.providers, os.environ, wall_now)
        spans = collector_of(os.environ, role)
        service = Service(settings, providers, spans, policies=installed_policies())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(service, role))
    except (SettingsError, HeadwayServiceError, ValueError) as error:
        print(f"headway service: {error}", file=sys.stderr)  # noqa: T201  # error message of a program
        return 1
    return 0


async def _run(service: Service, role: str) -> None:
    try:
        async with AsyncExitStack() as stack:
            if role != "migrate":
                await stack.enter_async_context(service.keeping_time())
            await ROLES[role](service)
    finally:
        await service.close()
