"""`Provider` over machines that this one plays, over EC2, over Slurm and over Kubernetes: one behaviour."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from benchmarks.engines.kubernetes_cluster import LOW, NAMESPACE, Kubernetes
from benchmarks.engines.slurm_cluster import Slurm
from headway.contract.values.devices import DEVICE_KIND_PATTERN
from headway.contract.values.markets import Market
from headway.local.rented import machine_folders
from service.adapters.providers.kubernetes import KubernetesProvider
from service.adapters.providers.local import LocalProvider
from service.adapters.providers.slurm import SlurmProvider
from service.domain.rental.machines import Found, Machine
from service.domain.shared.errors import NoCapacity, ProviderRefused
from service.usecases.ports.rental import Provider
from tests.conformance.conftest import AGENT
from tests.conformance.ec2_rig import Ec2Rig
from tests.conformance.leases import ended, launched, listed, machine_of
from tests.waiting import until

NUMBERS = itertools.count()


@dataclass
class Rig:
    """A provider, and what its world does."""

    provider: Provider
    instance_type: str
    slots: int
    device_kind: str
    region: str
    vanish: Callable[[Found], Awaitable[None]]
    """The machine ends without anybody's asking."""
    run_out: Callable[[], None]
    """From now on there is no machine to be had."""
    elsewhere: Provider
    """The same provider for another cluster."""
    firm_type: str = ""
    """The type that is sold on demand, where it is another one."""

    def machine(self, **changes: object) -> Machine:
        fields = {"device_kind": self.device_kind} | changes
        return machine_of(self.provider.name, self.region, self.instance_type, self.slots, **fields)

    async def launch(self, machine: Machine, token: str = "secret") -> Found:
        return await launched(self.provider, machine, token)

    async def listed(self, machine: Machine) -> list[Found]:
        return await listed(self.provider, machine)

    async def ended(self, machine: Machine) -> Found:
        """The machine, once it is listed as ended."""
        return await ended(self.provider, machine)


@pytest.fixture(params=["local", "ec2", "slurm", "kubernetes"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    if request.param == "ec2":
        yield ec2_rig(request.getfixturevalue("ec2"))
        return
    if request.param == "slurm":
        slurm = request.getfixturevalue("slurm")
        yield slurm_rig(slurm)
        slurm.command("scancel", "--user=root")
        slurm.until_idle(slurm.nodes)
        return
    if request.param == "kubernetes":
        kubernetes = request.getfixturevalue("kubernetes")
        yield kubernetes_rig(kubernetes)
        kubernetes.clear()
        return
    rig = local_rig(tmp_path)
    yield rig
    for folder in machine_folders(tmp_path / "machines"):
        folder.end()


def ec2_rig(ec2: Ec2Rig) -> Rig:
    async def vanish(found: Found) -> None:
        ec2.clients.ec2.terminate_instances(InstanceIds=[found.external_id])

    def run_out() -> None:
        ec2.aws.capacity = 0

    return Rig(
        provider=ec2.provider(),
        instance_type="g4dn.xlarge",
        slots=1,
        device_kind="t4",
        region=ec2.region,
        vanish=vanish,
        run_out=run_out,
        elsewhere=ec2.provider(cluster="another"),
    )


def slurm_rig(slurm: Slurm) -> Rig:
    async def vanish(found: Found) -> None:
        slurm.command("scancel", "--signal=KILL", "--full", found.external_id)

    def run_out() -> None:
        slurm.take_nodes(slurm.nodes)

    def provider(cluster: str) -> SlurmProvider:
        env = {
            "HEADWAY_CLUSTER": cluster,
            "HEADWAY_SLURM_PARTITIONS": "low=0.05,high=0.2",
            "HEADWAY_SLURM_LOG": str(slurm.folder / "pilot-%j.log"),
            "HEADWAY_SLURM_WAIT_S": "5",
        }
        return SlurmProvider.from_env(env, lambda: datetime.now(UTC))

    return Rig(
        provider=provider("one"),
        instance_type=f"low/cpu:{slurm.cpus}",
        slots=slurm.cpus,
        device_kind="cpu",
        region="hall",
        vanish=vanish,
        run_out=run_out,
        elsewhere=provider("another"),
        firm_type=f"high/cpu:{slurm.cpus}",
    )


def kubernetes_rig(kubernetes: Kubernetes) -> Rig:
    async def vanish(found: Found) -> None:
        kubernetes.delete(found.external_id, grace_s=0)

    def run_out() -> None:
        for _ in range(kubernetes.nodes):
            kubernetes.occupy()

    def provider(cluster: str) -> KubernetesProvider:
        env = {
            "KUBECONFIG": str(kubernetes.kubeconfig),
            "HEADWAY_CLUSTER": cluster,
            "HEADWAY_KUBERNETES_IMAGE": AGENT,
            "HEADWAY_KUBERNETES_SPOT": "cpu=0.05",
            "HEADWAY_KUBERNETES_SPOT_CLASS": LOW,
            "HEADWAY_KUBERNETES_ON_DEMAND": "cpu=0.2",
            "HEADWAY_KUBERNETES_WAIT_S": "5",
        }
        return KubernetesProvider.from_env(env, lambda: datetime.now(UTC))

    return Rig(
        provider=provider("one"),
        instance_type=f"cpu:{kubernetes.cpus}",
        slots=kubernetes.cpus,
        device_kind="cpu",
        region=NAMESPACE,
        vanish=vanish,
        run_out=run_out,
        elsewhere=provider("another"),
    )


def local_rig(folder: Path) -> Rig:
    offers = folder / "offers.yaml"
    offer = {"instance_type": "small", "slots": 2, "on_demand_usd_per_h": 0.4, "spot_usd_per_h": 0.1}
    offers.write_text(yaml.safe_dump({"offers": [offer]}))

    async def vanish(found: Found) -> None:
        (gone,) = [
            one
            for one in machine_folders(folder / "machines")
            if one.lease is not None and one.lease.external_id == found.external_id
        ]
        await until(lambda: gone.pid is not None)
        assert gone.pid is not None
        os.kill(gone.pid, signal.SIGKILL)

    def run_out() -> None:
        offers.write_text(yaml.safe_dump({"offers": [{**offer, "spot_capacity": 0}]}))

    return Rig(
        provider=LocalProvider(offers, folder / "machines"),
        instance_type="small",
        slots=2,
        device_kind="cpu",
        region="here",
        vanish=vanish,
        run_out=run_out,
        elsewhere=LocalProvider(offers, folder / "other-machines"),
    )


@pytest.mark.slow
async def test_what_is_launched_is_listed_and_billed_from_now(rig: Rig) -> None:
    machine = rig.machine()
    before = datetime.now(UTC) - timedelta(seconds=2)
    found = await rig.launch(machine)
    assert (found.machine_id, found.ended, found.billed_to) == (machine.id, False, None)
    assert before <= found.billed_from <= datetime.now(UTC) + timedelta(seconds=2)
    (listed,) = await rig.listed(machine)
    assert (listed.external_id, listed.billed_from) == (found.external_id, found.billed_from)


async def test_launched_again_it_is_the_same_machine(rig: Rig) -> None:
    machine = rig.machine()
    first = await rig.launch(machine)
    again = await rig.launch(machine)
    assert again.external_id == first.external_id
    assert len(await rig.listed(machine)) == 1


async def test_launched_again_with_another_secret_it_is_the_same_machine(rig: Rig) -> None:
    """Whoever has crashed has only the digest of the first."""
    machine = rig.machine()
    first = await rig.launch(machine, "one")
    again = await rig.launch(machine, "two")
    assert again.external_id == first.external_id
    assert len(await rig.listed(machine)) == 1


async def test_machines_are_apart(rig: Rig) -> None:
    machines = [
        rig.machine(),
        rig.machine(market=Market.ON_DEMAND, instance_type=rig.firm_type or rig.instance_type),
    ]
    found = await asyncio.gather(*(rig.launch(machine) for machine in machines))
    assert found[0].external_id != found[1].external_id
    await rig.provider.terminate(found[0].external_id)
    await rig.ended(machines[0])
    assert [one.ended for one in await rig.listed(machines[1])] == [False]


async def test_terminated_it_is_billed_no_longer_and_that_may_be_repeated(rig: Rig) -> None:
    machine = rig.machine()
    found = await rig.launch(machine)
    await rig.provider.terminate(found.external_id)
    await rig.provider.terminate(found.external_id)
    ended = await rig.ended(machine)
    assert ended.billed_to is not None
    assert ended.billed_to >= ended.billed_from
    assert ended.billed_from == found.billed_from


async def test_what_does_not_exist_is_terminated_without_an_error(rig: Rig) -> None:
    await rig.provider.terminate("i-0123456789abcdef0")


async def test_one_that_ends_without_notice_is_listed_as_ended(rig: Rig) -> None:
    machine = rig.machine()
    await rig.vanish(await rig.launch(machine))
    ended = await rig.ended(machine)
    assert ended.billed_to is not None
    assert ended.message


async def test_no_capacity(rig: Rig) -> None:
    rig.run_out()
    machine = rig.machine()
    with pytest.raises(NoCapacity):
        await rig.launch(machine)
    assert await rig.listed(machine) == []


async def test_what_cannot_be_is_refused(rig: Rig) -> None:
    machine = rig.machine(instance_type="huge", region="nowhere")
    with pytest.raises(ProviderRefused):
        await rig.launch(machine)
    assert await rig.listed(machine) == []


async def test_another_clusters_machines_are_not_ours(rig: Rig) -> None:
    machine = rig.machine()
    await rig.launch(machine)
    assert [one for one in await rig.elsewhere.list() if one.machine_id == machine.id] == []


async def test_offers_can_be_rented_and_have_a_price(rig: Rig) -> None:
    offers = await rig.provider.offers()
    (offer, *_) = [one for one in offers if one.instance_type == rig.instance_type]
    assert (offer.provider, offer.region) == (rig.provider.name, rig.region)
    assert (offer.device_kind, offer.devices) == (rig.device_kind, rig.slots)
    for one in offers:
        prices = [usd for market in Market if (usd := one.usd_per_h(market)) is not None]
        assert prices
        assert min(prices) > 0
    assert all(re.fullmatch(DEVICE_KIND_PATTERN, one.device_kind) for one in offers)
    market = Market.ON_DEMAND if offer.on_demand_usd_per_h is not None else Market.SPOT
    assert not (await rig.launch(rig.machine(zone=offer.zone, market=market))).ended
