"""Renting from EC2, pass by pass, over a real database and moto's server, while calls fail in every way."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.views.machines import MachineView
from service.domain.policies.registry import POLICIES
from service.domain.rental.fleet import Patience
from service.domain.rental.rental_targets import RentalRules
from service.usecases.ports.rental import Provider
from service.usecases.rental.rent import Memory, Renting, RentResult, rent
from tests.conformance.aws import Fault
from tests.conformance.conftest import s3_environment, s3_server
from tests.conformance.ec2_rig import Ec2Rig, ec2, ec2_clients
from tests.integration.service.conftest import JOIN_TOKEN, Harness

__all__ = ["ec2", "ec2_clients", "s3_environment", "s3_server"]

NUMBERS = itertools.count()
PASSES = 20
CLUSTER = "faulty"
TYPE = "c5.xlarge"


class Account:
    """The account at EC2, asked without faults."""

    def __init__(self, rig: Ec2Rig) -> None:
        self.ec2 = rig.clients.ec2

    def instances(self) -> list[dict[str, Any]]:
        answer = self.ec2.describe_instances(Filters=[{"Name": "tag:headway:cluster", "Values": [CLUSTER]}])
        return [one for reservation in answer["Reservations"] for one in reservation["Instances"]]

    def running(self) -> list[dict[str, Any]]:
        return [one for one in self.instances() if one["State"]["Name"] in {"pending", "running"}]

    def take_away(self, instance: dict[str, Any]) -> None:
        self.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])

    def leave_an_orphan(self, name: str) -> None:
        """Start a machine of another installation with the same name, whose database is lost."""
        tags = [{"Key": "headway:cluster", "Value": CLUSTER}, {"Key": "headway:machine", "Value": name}]
        self.ec2.run_instances(
            ImageId="ami-12c6146b",
            InstanceType=TYPE,
            MinCount=1,
            MaxCount=1,
            ClientToken=name,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )


class Stage:
    """The service and its provider, and what one pass left to the next."""

    def __init__(self, harness: Harness, provider: Provider) -> None:
        self.harness = harness
        self.memory = Memory()
        self.renting = Renting(
            providers=[provider],
            rules=RentalRules(max_machines=3, idle_s=0.0),
            patience=Patience(),
            public_url="http://headway",
            join_secret=JOIN_TOKEN,
            policies=POLICIES,
            new_machine_id=lambda: f"m{next(NUMBERS):08}",
        )

    async def turn(self) -> RentResult:
        harness = self.harness
        result = await rent(
            harness.service.database,
            self.renting,
            self.memory,
            harness.service.launch,
            now=harness.clock.now,
        )
        self.memory = result.memory
        return result

    def skip(self, seconds: float) -> None:
        self.harness.clock.skipped += timedelta(seconds=seconds)

    async def machines(self) -> list[MachineView]:
        page = (await self.harness.client.get("/api/v1/machines?limit=500")).json()
        return [MachineView.model_validate(one) for one in page["items"]]


def faults(rng: random.Random) -> list[Fault]:
    """Return the faults of a pass."""
    actions = ["RunInstances", "DescribeInstances", "TerminateInstances", "DescribeSpotPriceHistory"]
    kinds: list[dict[str, Any]] = [
        {"status": 500, "code": "InternalError"},
        {"status": 503, "code": "RequestLimitExceeded"},
        {"status": 400, "code": "InsufficientInstanceCapacity"},
        {"lost": True},
        {"doubled": True},
    ]
    return [
        Fault(action, times=rng.choice([1, 2, 1000]), **rng.choice(kinds))
        for action in actions
        if rng.random() < 0.4
    ]


def name_of(instance: dict[str, Any]) -> str:
    """The lease that it was launched for."""
    return next(str(tag["Value"]) for tag in instance["Tags"] if tag["Key"] == "headway:machine")


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_nothing_leaks_whatever_goes_wrong(harness: Harness, ec2: Ec2Rig) -> None:
    rng = random.Random(11)
    account = Account(ec2)
    stage = Stage(harness, ec2.provider(cluster=CLUSTER, HEADWAY_EC2_INSTANCE_TYPES=TYPE))
    await harness.submit(market="spot", elastic={"min": 2, "max": 8})
    happened: Counter[str] = Counter()
    for number in range(PASSES):
        ec2.aws.faults = faults(rng)
        result = await stage.turn()
        happened["unanswered"] += result.unanswered
        happened["launched"] += result.launched
        happened["not launched"] += result.not_launched
        ec2.aws.faults = []
        if account.running() and rng.random() < 0.2:
            account.take_away(rng.choice(account.running()))
            happened["taken away"] += 1
        if rng.random() < 0.1:
            account.leave_an_orphan(f"lost-{number}")
            happened["orphans"] += 1
        stage.skip(rng.choice([5, 60, 700]))
    assert min(happened.values()) > 0, happened
    await harness.post("jobs/job/cancel")
    for _ in range(12):
        await stage.turn()
        stage.skip(700)
    assert account.running() == [], "every machine was given back, orphans and doubles too"
    machines = await stage.machines()
    assert {one.state for one in machines} <= {"gone", "failed"}
    leases = Counter(one.external_id for one in machines if one.external_id is not None)
    assert set(leases.values()) == {1}, "no machine is billed in two leases"
    ours = {one["InstanceId"] for one in account.instances() if not name_of(one).startswith("lost-")}
    assert set(leases) == ours, "none that we launched is billed in no lease"
    for machine in machines:
        if machine.external_id is not None:
            assert machine.billed_from is not None
            assert machine.billed_to is not None
            assert machine.billed_to >= machine.billed_from
