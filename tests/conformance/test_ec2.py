"""Launches at EC2 with faults, lost answers and invalid prices."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from headway.contract.values.markets import Market
from service.adapters.provider_choice import installed_providers
from service.adapters.providers.ec2 import Ec2Provider
from service.adapters.providers.ec2_client import Ec2Clients, connect
from service.domain.rental.catalogue import BUILT_IN, merged
from service.domain.rental.machines import Machine
from service.domain.shared.errors import HeadwayServiceError, NoCapacity, ProviderRefused, Unavailable
from service.main import wall_now
from service.settings import SettingsError, read_settings
from service.usecases.ports.rental import JoinBy
from tests.conformance.aws import Fault
from tests.conformance.ec2_rig import Ec2Rig
from tests.conformance.test_providers import ec2_rig
from tests.waiting import until

JOIN = JoinBy(url="https://headway.example:8123", token="one-time", node_name="rented-1")
LASTS = 1000


def machine_of(ec2: Ec2Rig, **changes: Any) -> Machine:
    return ec2_rig(ec2).machine(**changes)


async def test_a_launch_says_all_that_the_machine_needs(ec2: Ec2Rig) -> None:
    subnet = ec2.clients.ec2.describe_subnets()["Subnets"][0]
    provider = ec2.provider(
        cluster="prod", HEADWAY_EC2_SUBNETS=f"{subnet['AvailabilityZone']}={subnet['SubnetId']}"
    )
    machine = machine_of(ec2, zone=subnet["AvailabilityZone"])
    found = await provider.launch(machine, JOIN)
    instance = ec2.instance(found.external_id)
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert tags["headway:cluster"] == "prod"
    assert tags["headway:machine"] == machine.id
    assert tags["headway:node"] == "rented-1"
    assert (instance["InstanceLifecycle"], instance["ClientToken"]) == ("spot", machine.id)
    assert instance["SubnetId"] == subnet["SubnetId"]
    answer = ec2.clients.ec2.describe_instance_attribute(InstanceId=found.external_id, Attribute="userData")
    script = base64.b64decode(answer["UserData"]["Value"]).decode()
    assert script.startswith("#!/bin/sh\n")
    assert "HEADWAY_URL=https://headway.example:8123\nHEADWAY_JOIN_TOKEN=one-time\n" in script
    assert "--name rented-1 --slots 1 --device-kind t4\n" in script
    assert "HEADWAY_METADATA=ec2" in script
    assert "$" not in script, "everything is filled in"
    assert is_shell(script)


def is_shell(script: str) -> bool:
    return subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0


async def test_on_demand_is_no_spot_machine(ec2: Ec2Rig) -> None:
    found = await ec2.provider().launch(machine_of(ec2, market=Market.ON_DEMAND), JOIN)
    assert "InstanceLifecycle" not in ec2.instance(found.external_id)


@pytest.mark.parametrize(
    ("status", "code", "means"),
    [
        (500, "InternalError", Unavailable),
        (503, "RequestLimitExceeded", Unavailable),
        (503, "Unavailable", Unavailable),
        (400, "InsufficientInstanceCapacity", NoCapacity),
        (400, "MaxSpotInstanceCountExceeded", NoCapacity),
        (400, "VcpuLimitExceeded", NoCapacity),
        (400, "SpotMaxPriceTooLow", NoCapacity),
        (400, "InvalidAMIID.NotFound", ProviderRefused),
        (403, "UnauthorizedOperation", ProviderRefused),
    ],
)
async def test_errors_of_a_launch(
    ec2: Ec2Rig, status: int, code: str, means: type[HeadwayServiceError]
) -> None:
    ec2.aws.faults = [Fault("RunInstances", status, code, times=LASTS)]
    provider, machine = ec2.provider(), machine_of(ec2)
    with pytest.raises(means, match=code) as caught:
        await provider.launch(machine, JOIN)
    assert machine.instance_type in caught.value.message
    assert await provider.list() == []
    ec2.aws.faults = []
    assert not (await provider.launch(machine, JOIN)).ended, "it helps to ask again when it is over"


@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (503, "RequestLimitExceeded")])
async def test_a_fault_that_passes_is_not_noticed(ec2: Ec2Rig, status: int, code: str) -> None:
    ec2.aws.faults = [Fault("RunInstances", status, code)]
    provider = ec2.provider()
    await provider.launch(machine_of(ec2), JOIN)
    assert len(await provider.list()) == 1


@pytest.mark.parametrize("call", ["list", "terminate", "offers"])
@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (403, "UnauthorizedOperation")])
async def test_errors_of_other_calls_leave_everything_unknown(
    ec2: Ec2Rig, call: str, status: int, code: str
) -> None:
    actions = {
        "list": "DescribeInstances",
        "terminate": "TerminateInstances",
        "offers": "DescribeSpotPriceHistory",
    }
    ec2.aws.faults = [Fault(actions[call], status, code, times=LASTS)]
    provider = ec2.provider()
    calls = {
        "list": provider.list,
        "terminate": lambda: provider.terminate("i-1"),
        "offers": provider.offers,
    }
    with pytest.raises(Unavailable, match=code):
        await calls[call]()


async def test_a_lost_answer_makes_no_second_machine(ec2: Ec2Rig) -> None:
    ec2.aws.faults = [Fault("RunInstances", lost=True, times=LASTS)]
    provider, machine = ec2.provider(), machine_of(ec2)
    with pytest.raises(Unavailable, match="the outcome is unknown"):
        await provider.launch(machine, JOIN)
    ec2.aws.faults = []
    found = await provider.launch(machine, JOIN)
    assert [one.external_id for one in await provider.list()] == [found.external_id]
    assert ec2.aws.asked.count("RunInstances") >= 2


async def test_a_lost_answer_and_a_new_secret(ec2: Ec2Rig) -> None:
    """The service has crashed meanwhile: the machine that has the old secret is still the only one."""
    ec2.aws.faults = [Fault("RunInstances", lost=True, times=LASTS)]
    provider, machine = ec2.provider(), machine_of(ec2)
    with pytest.raises(Unavailable):
        await provider.launch(machine, JOIN)
    ec2.aws.faults = []
    again = JoinBy(url=JOIN.url, token="another", node_name=JOIN.node_name)
    found = await provider.launch(machine, again)
    assert [one.external_id for one in await provider.list()] == [found.external_id]


async def test_two_machines_for_one_launch_are_both_listed(ec2: Ec2Rig) -> None:
    """Whoever reconciles sees the one too many."""
    ec2.aws.faults = [Fault("RunInstances", doubled=True)]
    provider, machine = ec2.provider(), machine_of(ec2)
    await provider.launch(machine, JOIN)
    assert [one.machine_id for one in await provider.list()] == [machine.id, machine.id]


async def test_an_answer_that_takes_too_long(ec2: Ec2Rig) -> None:
    config = Config(read_timeout=0.2, retries={"total_max_attempts": 1})
    hasty = boto3.client("ec2", region_name=ec2.region, endpoint_url=ec2.aws.url, config=config)
    answer = threading.Event()
    ec2.aws.faults = [Fault("RunInstances", until=answer)]
    settings = ec2.settings(HEADWAY_CLUSTER="hasty")
    provider = Ec2Provider(settings, Ec2Clients(hasty, ec2.clients.pricing), lambda: datetime.now(UTC))
    machine = machine_of(ec2)
    with pytest.raises(Unavailable, match="the outcome is unknown"):
        await provider.launch(machine, JOIN)
    patient = Ec2Provider(settings, ec2.clients, lambda: datetime.now(UTC))

    async def carried_out() -> bool:
        return len(await patient.list()) == 1

    await until(carried_out)
    answer.set()
    found = await patient.launch(machine, JOIN)
    assert [one.external_id for one in await patient.list()] == [found.external_id]


async def test_a_list_of_many_pages_is_whole(ec2: Ec2Rig) -> None:
    provider = ec2.provider()
    machines = [machine_of(ec2) for _ in range(12)]
    await asyncio.gather(*(provider.launch(machine, JOIN) for machine in machines))
    ec2.aws.page_size = 5
    assert {one.machine_id for one in await provider.list()} == {machine.id for machine in machines}
    assert ec2.aws.asked.count("DescribeInstances") == 3


async def test_a_list_that_breaks_off_is_no_list(ec2: Ec2Rig) -> None:
    provider = ec2.provider()
    for _ in range(6):
        await provider.launch(machine_of(ec2), JOIN)
    ec2.aws.page_size = 5
    first_page = Fault("DescribeInstances", until=threading.Event())
    assert first_page.until is not None
    first_page.until.set()
    ec2.aws.faults = [first_page, Fault("DescribeInstances", times=LASTS)]
    with pytest.raises(Unavailable):
        await provider.list()


@pytest.mark.parametrize(
    ("changes", "join", "why"),
    [
        ({"region": "eu-west-1"}, JOIN, "HEADWAY_EC2_REGION is us-east-1"),
        ({"zone": "us-east-1z"}, JOIN, "no subnet in us-east-1z"),
        ({}, JoinBy(url="https://x", token="a\nrm -rf /", node_name="n"), "token has characters"),
        ({}, JoinBy(url="https://x", token="$(reboot)", node_name="n"), "token has characters"),
    ],
)
async def test_what_is_refused_without_asking(
    ec2: Ec2Rig, changes: dict[str, str], join: JoinBy, why: str
) -> None:
    provider = ec2.provider(HEADWAY_EC2_SUBNETS="us-east-1a=subnet-1")
    with pytest.raises(ProviderRefused, match=why):
        await provider.launch(machine_of(ec2, **changes), join)
    assert "RunInstances" not in ec2.aws.asked


async def test_the_service_rents_from_ec2_when_it_is_told_to(
    ec2: Ec2Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And takes the object storage's endpoint for nothing but that."""
    env = {
        "HEADWAY_DATABASE_URL": "postgresql://nowhere/db",
        "HEADWAY_REDIS_URL": "redis://nowhere",
        "HEADWAY_STORAGE_URL": "s3://bucket",
        "HEADWAY_API_TOKEN": "a",
        "HEADWAY_JOIN_TOKEN": "j",
        "HEADWAY_PROVIDERS": "ec2",
        "HEADWAY_EC2_REGION": ec2.region,
        "HEADWAY_EC2_IMAGE": "ami-12c6146b",
        "HEADWAY_EC2_INSTANCE_TYPES": "c5.xlarge",
        "HEADWAY_CLUSTER": "composed",
        "AWS_ENDPOINT_URL_EC2": ec2.aws.url,
    }
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    (provider,) = installed_providers(read_settings(env).rental.providers, env, wall_now)
    machine = machine_of(ec2, instance_type="c5.xlarge", device_kind="cpu", slots=2)
    found = await provider.launch(machine, JOIN)
    assert [one.external_id for one in await provider.list()] == [found.external_id]
    assert {one.instance_type for one in await provider.offers()} == {"c5.xlarge"}


def test_without_credentials_the_service_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SettingsError, match="no AWS credentials: set AWS_PROFILE"):
        connect("us-east-1")


async def test_offers(ec2: Ec2Rig) -> None:
    offers = {(one.instance_type, one.zone): one for one in await ec2.provider().offers()}
    gpu, cpu = offers["g4dn.xlarge", "us-east-1a"], offers["c5.xlarge", "us-east-1a"]
    assert (gpu.device_kind, gpu.devices, gpu.device_memory_bytes) == ("t4", 1, 16 << 30)
    assert (gpu.on_demand_usd_per_h, gpu.vcpus, gpu.memory_bytes) == (0.526, 4, 16 << 30)
    assert gpu.network_gbps == 5.0
    assert gpu.spot_usd_per_h is not None
    assert (cpu.device_kind, cpu.devices, cpu.on_demand_usd_per_h) == ("cpu", 2, 0.17), "a slot is a core"


async def test_offers_take_the_place_of_the_built_in_ones(ec2: Ec2Rig) -> None:
    """With what only the catalogue knows: TFLOPS, and how often machines are taken away."""
    fresh = merged(BUILT_IN, await ec2.provider().offers()).offers
    found = [one for one in fresh if one.instance_type == "g4dn.xlarge"]
    assert {one.zone for one in found} >= {"us-east-1a", "us-east-1b"}
    assert "" not in {one.zone for one in found}
    assert {(one.tflops, one.hazard_per_h) for one in found} == {(65.0, 0.06)}


async def test_list_prices_are_asked_for_seldom_and_spot_prices_always(ec2: Ec2Rig) -> None:
    moment = [datetime.now(UTC)]
    provider = Ec2Provider(ec2.settings(), ec2.clients, lambda: moment[0])
    await provider.offers()
    await provider.offers()
    assert (ec2.aws.asked.count("GetProducts"), ec2.aws.asked.count("DescribeSpotPriceHistory")) == (2, 2)
    moment[0] += timedelta(hours=7)
    ec2.aws.prices["c5.xlarge"] = {"USD": "0.2"}
    offers = await provider.offers()
    assert {one.on_demand_usd_per_h for one in offers if one.instance_type == "c5.xlarge"} == {0.2}


@pytest.mark.parametrize("price", [None, {}, {"USD": "0.0000000000"}, {"USD": "free"}, {"USD": "NaN"}])
async def test_what_has_no_price_is_not_sold(ec2: Ec2Rig, price: dict[str, str] | None) -> None:
    ec2.aws.prices.pop("g4dn.xlarge")
    if price is not None:
        ec2.aws.prices["g4dn.xlarge"] = price
    offers = [one for one in await ec2.provider().offers() if one.instance_type == "g4dn.xlarge"]
    assert {one.on_demand_usd_per_h for one in offers} == {None}


async def test_a_price_in_another_currency_is_refused(ec2: Ec2Rig) -> None:
    ec2.aws.prices["g4dn.xlarge"] = {"CNY": "3.711"}
    with pytest.raises(ProviderRefused, match="CNY; Headway counts in dollars"):
        await ec2.provider().offers()


async def test_types_are_chosen_by_pattern_and_zones_by_subnet(ec2: Ec2Rig) -> None:
    env = {"HEADWAY_EC2_INSTANCE_TYPES": "g4dn.*", "HEADWAY_EC2_SUBNETS": "us-east-1b=subnet-1"}
    offers = await ec2.provider(**env).offers()
    assert {one.zone for one in offers} == {"us-east-1b"}
    assert {"g4dn.xlarge", "g4dn.12xlarge"} <= {one.instance_type for one in offers}
    assert {one.device_kind for one in offers} == {"t4"}


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"HEADWAY_EC2_REGION": ""}, "HEADWAY_EC2_REGION is not set"),
        ({"HEADWAY_EC2_IMAGE": " "}, "HEADWAY_EC2_IMAGE is not set"),
        ({"HEADWAY_EC2_INSTANCE_TYPES": ""}, "HEADWAY_EC2_INSTANCE_TYPES is not set"),
        ({"HEADWAY_EC2_INSTANCE_TYPES": "big machines"}, "'big machines' is not an instance type"),
        ({"HEADWAY_EC2_SUBNETS": "subnet-1"}, "not of the form ZONE=SUBNET"),
        ({"HEADWAY_EC2_SUBNETS": "a=subnet-1,a=subnet-2"}, "one for each zone"),
        ({"HEADWAY_CLUSTER": "a b"}, "'a b' is not a valid name"),
        ({"HEADWAY_EC2_USER_DATA": "/nowhere.sh"}, "/nowhere.sh cannot be read"),
    ],
)
def test_settings_that_are_refused(ec2: Ec2Rig, env: dict[str, str], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        ec2.settings(**env)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("join ${url}", "must have"),
        ("join ${url} ${token} $(date)", "a plain dollar is written"),
        ("join ${url} ${token} ${colour}", "unknown placeholder"),
        ("# ${url} ${token}" + "x" * 20_000, "larger than"),
    ],
)
def test_start_scripts_that_are_refused(ec2: Ec2Rig, tmp_path: Path, script: str, why: str) -> None:
    path = tmp_path / "script.sh"
    path.write_text(script)
    with pytest.raises(SettingsError, match=why):
        ec2.settings(HEADWAY_EC2_USER_DATA=str(path))
