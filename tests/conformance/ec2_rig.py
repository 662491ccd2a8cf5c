"""The EC2 provider over moto's server, with faults in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from service.adapters.providers.ec2 import Ec2Provider
from service.adapters.providers.ec2_client import Ec2Clients, connect
from service.adapters.providers.ec2_settings import Ec2Settings, read_ec2_settings
from tests.conformance.aws import DOLLARS, FaultyAws

REGION = "us-east-1"
NAMES = iter(range(1_000_000))


@dataclass
class Ec2Rig:
    """Clients and faults of EC2 for tests."""

    aws: FaultyAws
    clients: Ec2Clients
    region: str = REGION

    def settings(self, **env: str) -> Ec2Settings:
        given = {
            "HEADWAY_EC2_REGION": self.region,
            "HEADWAY_EC2_IMAGE": "ami-12c6146b",
            "HEADWAY_EC2_INSTANCE_TYPES": "g4dn.xlarge,c5.xlarge",
            **env,
        }
        return read_ec2_settings(given)

    def provider(self, cluster: str | None = None, **env: str) -> Ec2Provider:
        """One for a cluster of its own, unless it is named."""
        settings = self.settings(HEADWAY_CLUSTER=cluster or f"test-{next(NAMES)}", **env)
        return Ec2Provider(settings, self.clients, lambda: datetime.now(UTC))

    def instance(self, external_id: str) -> dict[str, Any]:
        """Return EC2's description of an instance."""
        answer = self.clients.ec2.describe_instances(InstanceIds=[external_id])
        (reservation,) = answer["Reservations"]
        (instance,) = reservation["Instances"]
        return dict(instance)


@pytest.fixture(scope="session")
def ec2_clients(s3_server: str) -> Iterator[Ec2Rig]:
    """The rig of all tests: reading the description of EC2, for new clients, takes longer than most of them."""
    aws = FaultyAws(s3_server)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "key")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        clients = connect(REGION, endpoint_url=aws.url)
    yield Ec2Rig(aws, clients)
    aws.close()


@pytest.fixture
def ec2(ec2_clients: Ec2Rig, s3_environment: None) -> Ec2Rig:
    """moto's server has all of AWS, and no fault so far."""
    ec2_clients.aws.reset(prices={"g4dn.xlarge": DOLLARS, "c5.xlarge": {"USD": "0.17"}})
    return ec2_clients
