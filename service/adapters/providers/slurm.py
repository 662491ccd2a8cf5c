"""Nodes of a Slurm cluster as rented machines: one single-node batch job, a pilot, for each lease.

Slurm ends whole allocations, so a pilot has one node: the jobs of the others go on when it is taken. A pilot's name
carries the lease, and its dependency `singleton` keeps a second one of that name from running beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from shlex import quote
from typing import Self

from headway.contract.values.markets import Market
from service.adapters.providers import slurm_cluster as slurm
from service.adapters.providers.slurm_cluster import Config, Description, Pilot, Shape
from service.adapters.providers.slurm_commands import NO_SUCH_JOB, SlurmFailed, meaning, run
from service.adapters.providers.slurm_settings import SlurmSettings, read_slurm_settings
from service.domain.rental.machines import Found, Machine
from service.domain.rental.offers import Offer
from service.domain.shared.errors import NoCapacity, ProviderRefused, Unavailable
from service.usecases.ports.rental import JoinBy, Provider

_POLL_S, _LONGEST_POLL_S = 0.25, 2.0
"""Pauses between two looks at a waiting pilot: each doubles the last, since a controller serves a whole cluster."""
_SCRIPT = """\
#!/bin/sh
{setup}
export HEADWAY_METADATA=slurm HEADWAY_KILL_WAIT_S={kill_wait_s}
HEADWAY_PILOT_TIMES=$(TZ=UTC squeue --noheader --jobs="$SLURM_JOB_ID" --format='%S %e') && export HEADWAY_PILOT_TIMES
state=$(mktemp -d "${{SLURM_TMPDIR:-/tmp}}/headway-$SLURM_JOB_ID-XXXXXX") || exit
{trust}trap : TERM  # Slurm signals every process of the job, and the agent decides when it ends
{agent} --state-dir "$state/agent" &
agent=$!
until wait "$agent"; code=$?; ! kill -0 "$agent" 2>/dev/null; do :; done
rm -rf "$state"
exit "$code"
"""
_TRUST = """\
cat >"$state/authority.pem" <<'HEADWAY_END' || exit
{authority}
HEADWAY_END
export HEADWAY_CA_FILE="$state/authority.pem"
"""
_HAZARD_PER_H = 0.1
"""Expected preemptions per hour of a preemptible node, until this cluster's own leases have shown the rate."""


class SlurmProvider(Provider):
    """Provider of the nodes of one Slurm cluster, by Slurm's own commands."""

    name = "slurm"

    def __init__(self, settings: SlurmSettings, now: Callable[[], datetime]) -> None:
        self._settings = settings
        self._now = now
        self._prefix = f"headway:{settings.cluster}:"
        self._described: Description | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str], now: Callable[[], datetime]) -> Self:
        return cls(read_slurm_settings(env), now)

    async def offers(self) -> Sequence[Offer]:
        self._described = None
        found = await self._description()
        return [self._offer(one, found.markets[one.partition], found.config) for one in found.shapes.values()]

    async def launch(self, machine: Machine, join: JoinBy) -> Found:
        if not await self._of(machine.id):
            await self._submit(machine, join)
        return await self._with_node(machine.id)

    async def terminate(self, external_id: str) -> None:
        if not external_id.isdecimal():
            return
        try:
            await run(["scancel", external_id])
        except SlurmFailed as failed:
            if not any(one in failed.text.lower() for one in NO_SUCH_JOB):
                raise meaning(failed) from failed

    async def list(self) -> Sequence[Found]:
        # Slurm forgets jobs `MinJobAge` seconds after their end, five minutes by default.
        return [self._found(one) for one in await slurm.pilots(self._prefix)]

    async def _of(self, machine_id: str) -> Sequence[Pilot]:
        return [one for one in await slurm.pilots(self._prefix) if one.machine_id == machine_id]

    async def _with_node(self, machine_id: str) -> Found:
        """Return the machine once its pilot has a node.

        Raises:
            NoCapacity: Slurm has given it none in time; it is cancelled.
            Unavailable: Slurm does not list it.
        """
        clock = asyncio.get_running_loop()
        give_up_s, poll_s = clock.time() + self._settings.wait_s, _POLL_S
        while pilots := await self._of(machine_id):
            first = pilots[0]
            if not first.waits:
                return self._found(first)
            if clock.time() < give_up_s:
                await asyncio.sleep(min(poll_s, max(0.0, give_up_s - clock.time())))
                poll_s = min(2 * poll_s, _LONGEST_POLL_S)
                continue
            await slurm.asked("scancel", "--state=PENDING", first.number)  # nothing, if it has just started
            present = [one for one in await self._of(machine_id) if one.present]
            if present:
                return self._found(present[0])
            raise NoCapacity(
                f"Slurm has no free node: job {first.number} waited ({first.reason}) and was cancelled"
            )
        raise Unavailable(
            f"Slurm lists no job {self._prefix}{machine_id}, or not yet; the service tries again."
        )

    async def _description(self) -> Description:
        """Return the cluster as the last offers had it: `sbatch` itself refuses what has changed since. Raises: Unavailable."""
        if self._described is None:
            self._described = await slurm.described(self._settings.partitions)
        return self._described

    async def _submit(self, machine: Machine, join: JoinBy) -> None:
        found = await self._description()
        config, markets, shape = found.config, found.markets, found.shapes.get(machine.instance_type)
        if shape is None or machine.region != config.cluster:
            raise ProviderRefused(
                f"{machine.instance_type} is not a node of Slurm's cluster {config.cluster}."
            )
        if markets[shape.partition] is not machine.market:
            raise ProviderRefused(f"{machine.instance_type} is not sold as {machine.market}.")
        command = ["sbatch", "--parsable", *self._settings.options, *self._options(machine, shape, join)]
        token = {"HEADWAY_URL": join.url, "HEADWAY_JOIN_TOKEN": join.token}
        try:
            await run(command, extra=token, script=self._script(shape, join, config))
        except SlurmFailed as failed:
            raise meaning(failed, launching=True) from failed

    def _options(self, machine: Machine, shape: Shape, join: JoinBy) -> Sequence[str]:
        """Return what `sbatch` needs for a whole node of this shape, or none."""
        options = [
            f"--job-name={self._prefix}{machine.id}",
            f"--comment=agent {join.node_name} of Headway",
            f"--partition={shape.partition}",
            f"--output={self._settings.log}",
            f"--mincpus={shape.cpus}",
        ]
        options += [
            "--nodes=1",
            "--ntasks=1",
            "--exclusive",
            "--no-requeue",
            "--export=ALL",
            "--dependency=singleton",
        ]
        if shape.kind != "cpu":
            options.append(f"--gres=gpu{'' if shape.kind == 'gpu' else f':{shape.kind}'}:{shape.slots}")
        return options

    def _script(self, shape: Shape, join: JoinBy, config: Config) -> str:
        slots = f"--slots {shape.slots}{' --device-kind cpu' if shape.kind == 'cpu' else ''}"
        agent = f"{quote(self._settings.python)} -P -m worker_agent --own-jobs --name {quote(join.node_name)} {slots}"
        authority = self._settings.authority.strip()
        trust = _TRUST.format(authority=authority) if authority else ""
        return _SCRIPT.format(
            setup=self._settings.setup, trust=trust, kill_wait_s=config.kill_wait_s, agent=agent
        )

    def _offer(self, shape: Shape, market: Market, config: Config) -> Offer:
        usd_per_h = self._settings.partitions[shape.partition] * shape.slots
        spot = market is Market.SPOT
        return Offer(
            provider=self.name,
            region=config.cluster,
            instance_type=shape.instance_type,
            device_kind=shape.kind,
            devices=shape.slots,
            vcpus=shape.cpus,
            memory_bytes=shape.memory_bytes,
            on_demand_usd_per_h=None if spot else usd_per_h,
            spot_usd_per_h=usd_per_h if spot else None,
            hazard_per_h=_HAZARD_PER_H if spot else 0.0,
            min_billed_s=0.0,
            seen_at=self._now(),
        )

    def _found(self, pilot: Pilot) -> Found:
        ended = not pilot.waits and not pilot.present
        since = (
            (None if pilot.waits else pilot.started_at) or (pilot.ended_at if ended else None) or self._now()
        )
        return Found(
            external_id=pilot.number,
            machine_id=pilot.machine_id,
            ended=ended,
            billed_from=since,
            billed_to=max(pilot.ended_at or self._now(), since) if ended else None,
            message=pilot.message if ended else "",
            ends_at=pilot.ended_at if pilot.present else None,
        )
