"""Rented machines simulated by processes on this machine: see `headway/local/rented.py`."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from headway.contract.values.markets import Market
from headway.errors import HeadwayError
from headway.local.processes import open_log
from headway.local.rented import Lease, LocalOffer, LocalOffers, MachineFolder, machine_folders, read_offers
from service.domain.rental.machines import Found, Machine
from service.domain.rental.offers import Offer
from service.domain.shared.errors import NoCapacity, ProviderRefused, Unavailable
from service.environment import SettingsError, path_of
from service.usecases.ports.rental import JoinBy, Provider

_KEPT = timedelta(days=7)
"""Time for which the folder of an ended machine stays for inspection."""
_SECRETS = frozenset(
    {
        "HEADWAY_DATABASE_URL",
        "HEADWAY_REDIS_URL",
        "HEADWAY_AGENT_REDIS_URL",
        "HEADWAY_API_TOKEN",
        "HEADWAY_TOKEN",
    }
)
"""Environment variables that neither a machine nor its processes may see."""


class LocalProvider(Provider):
    """Provider of simulated machines.

    Args:
        offers: the file of offers, read at every call.
        folder: contains one folder for each machine. Running machines are found by it, whichever process
            started them.
    """

    name = "local"

    def __init__(
        self, offers: Path, folder: Path, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._offers = offers.resolve()
        self._folder = folder.resolve()
        self._now = now
        self._started: set[int] = set()

    @classmethod
    def from_env(cls, env: Mapping[str, str], now: Callable[[], datetime]) -> Self:
        offers, folder = path_of(env, "HEADWAY_LOCAL_OFFERS"), path_of(env, "HEADWAY_LOCAL_MACHINES")
        if offers is None or folder is None:
            raise SettingsError(
                "HEADWAY_PROVIDERS names local, which needs HEADWAY_LOCAL_OFFERS and HEADWAY_LOCAL_MACHINES; "
                "`headway up --rent FILE` sets both."
            )
        return cls(offers, folder, now=now)

    async def offers(self) -> Sequence[Offer]:
        file = self._read()
        return tuple(
            Offer(
                provider=self.name,
                region=file.region,
                instance_type=one.instance_type,
                device_kind=one.device_kind,
                devices=one.slots,
                on_demand_usd_per_h=one.on_demand_usd_per_h,
                spot_usd_per_h=one.spot_usd_per_h,
                hazard_per_h=one.hazard_per_h,
                min_billed_s=one.min_billed_s,
                seen_at=self._now(),
            )
            for one in file.offers
        )

    async def launch(self, machine: Machine, join: JoinBy) -> Found:
        return await asyncio.to_thread(self._launch, machine, join)

    async def terminate(self, external_id: str) -> None:
        await asyncio.to_thread(self._terminate, external_id)

    async def list(self) -> Sequence[Found]:
        return await asyncio.to_thread(_all_found, self._folder, self._now())

    def _read(self) -> LocalOffers:
        try:
            return read_offers(self._offers)
        except HeadwayError as error:
            raise Unavailable(str(error)) from error

    def _launch(self, machine: Machine, join: JoinBy) -> Found:
        folder = MachineFolder(self._folder / machine.id)
        if folder.lease is None:
            offer = self._offered(machine)
            folder.rent(_lease(machine, join, offer, self._offers, self._now()))
        if folder.pid is None and folder.ended() is None:
            self._start(folder, join.token)
        return _found(folder)

    def _offered(self, machine: Machine) -> LocalOffer:
        offers = {one.instance_type: one for one in self._read().offers}
        offer = offers.get(machine.instance_type)
        if offer is None or offer.slots != machine.slots:
            there = ", ".join(offers) or "nothing"
            raise ProviderRefused(f"{machine.instance_type} is not on offer; {self._offers} offers {there}")
        price = offer.on_demand_usd_per_h if machine.market is Market.ON_DEMAND else offer.spot_usd_per_h
        if price is None:
            raise ProviderRefused(f"{machine.instance_type} is not sold as {machine.market}")
        capacity, taken = offer.capacity(machine.market), self._running(machine.instance_type, machine.market)
        if capacity is not None and taken >= capacity:
            raise NoCapacity(f"all {capacity} {machine.market} machines of {machine.instance_type} are taken")
        return offer

    def _running(self, instance_type: str, market: Market) -> int:
        leases = (folder.lease for folder in machine_folders(self._folder) if folder.ended() is None)
        return sum(
            lease is not None and (lease.instance_type, lease.market) == (instance_type, market)
            for lease in leases
        )

    def _start(self, folder: MachineFolder, token: str) -> None:
        """Start the machine's process with `posix_spawn`: a `Popen` would warn about a process that outlives
        it.
        """
        self._collect()
        log = open_log(folder.path / "host.log")
        env = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-u", "-m", "headway.local.machine", str(folder.path)],
                {**env, "HEADWAY_JOIN_TOKEN": token},
                file_actions=[(os.POSIX_SPAWN_DUP2, nothing, 0)]
                + [(os.POSIX_SPAWN_DUP2, log, number) for number in (1, 2)],
                setsid=True,
            )
        finally:
            os.close(nothing)
            os.close(log)
        self._started.add(pid)

    def _collect(self) -> None:
        """Collect the exit status of ended machines, so that none remains a zombie."""
        for pid in tuple(self._started):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:
                ended = True
            if ended:
                self._started.discard(pid)

    def _terminate(self, external_id: str) -> None:
        for folder in machine_folders(self._folder):
            lease = folder.lease
            if lease is not None and lease.external_id == external_id:
                folder.end()
                folder.note_end(self._now(), "it was given back")


def _lease(machine: Machine, join: JoinBy, offer: LocalOffer, offers: Path, now: datetime) -> Lease:
    return Lease(
        machine_id=machine.id,
        external_id=f"local-{machine.id}",
        instance_type=machine.instance_type,
        market=machine.market.value,
        slots=offer.slots,
        device_kind=offer.device_kind,
        url=join.url,
        node_name=join.node_name,
        offers=str(offers),
        launch_delay_s=offer.launch_delay_s,
        joins=offer.joins,
        billed_from=now.isoformat(),
    )


def _all_found(folder: Path, now: datetime) -> list[Found]:
    """Return all machines, and delete the folders of those that ended more than 7 days ago."""
    found = []
    for machine in machine_folders(folder):
        one = _found(machine)
        if one.billed_to is not None and now - one.billed_to > _KEPT:
            shutil.rmtree(machine.path, ignore_errors=True)
        else:
            found.append(one)
    return found


def _found(folder: MachineFolder) -> Found:
    lease = folder.lease
    assert lease is not None, f"{folder.path} has no lease"
    ended = folder.ended()
    return Found(
        external_id=lease.external_id,
        machine_id=lease.machine_id,
        ended=ended is not None,
        billed_from=datetime.fromisoformat(lease.billed_from),
        billed_to=None if ended is None else ended[0],
        message="" if ended is None else ended[1],
    )
