"""On-demand and spot machines of EC2 in one region, through boto3.

A launch carries the machine's id as its client token, which makes it idempotent. The tag `headway:cluster`
names the cluster that owns a machine, `headway:machine` its lease, and `headway:node` the name of its agent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from headway.contract.values.markets import Market
from service.adapters.providers.ec2_client import (
    NOT_FOUND,
    SAME_TOKEN_OTHER_REQUEST,
    Ec2Clients,
    answered,
    code_of,
    connect,
    unanswered,
)
from service.adapters.providers.ec2_offers import Ec2Prices
from service.adapters.providers.ec2_settings import Ec2Settings, read_ec2_settings
from service.domain.rental.machines import Found, Machine
from service.domain.rental.offers import Offer
from service.domain.shared.errors import ProviderRefused, Unavailable
from service.usecases.ports.rental import JoinBy, Provider

NAME = "ec2"
TAG_CLUSTER, TAG_MACHINE, TAG_NODE = "headway:cluster", "headway:machine", "headway:node"
_ENDED = frozenset({"shutting-down", "terminated"})
"""States of a machine that has ended. Billing stops with `shutting-down`."""
_ENDED_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?: (?:GMT|UTC))?\)")
_PAGE = 1000
_SAFE_IN_SCRIPT = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!&*+,=%-]*")
"""Characters that are safe in the start script: they do not end a line, open a substitution or close a
quote.
"""

Answer = TypeVar("Answer")


class Ec2Provider(Provider):
    """Provider of EC2 machines. boto3's calls block in threads, each with a time limit."""

    name = NAME

    def __init__(self, settings: Ec2Settings, clients: Ec2Clients, now: Callable[[], datetime]) -> None:
        self._settings = settings
        self._ec2 = clients.ec2
        self._prices = Ec2Prices(settings, clients, now)

    @classmethod
    def from_env(cls, env: Mapping[str, str], now: Callable[[], datetime]) -> Self:
        settings = read_ec2_settings(env)
        clients = connect(settings.region, endpoint_url=env.get("AWS_ENDPOINT_URL_EC2") or None)
        return cls(settings, clients, now)

    async def offers(self) -> Sequence[Offer]:
        return await self._call("list its offers", self._prices.offers)

    async def launch(self, machine: Machine, join: JoinBy) -> Found:
        request = self._request(machine, join)
        what = f"launch {machine.instance_type} ({machine.market}) in {machine.zone or machine.region}"
        return await self._call(what, lambda: self._run(machine.id, request), launching=True)

    async def terminate(self, external_id: str) -> None:
        await self._call(f"terminate {external_id}", lambda: self._terminate(external_id))

    async def list(self) -> Sequence[Found]:
        # EC2 forgets machines about an hour after their end.
        return await self._call("list machines", lambda: self._list(TAG_CLUSTER, self._settings.cluster))

    async def _call(self, what: str, call: Callable[[], Answer], *, launching: bool = False) -> Answer:
        try:
            return await asyncio.to_thread(call)
        except ClientError as error:
            raise answered(error, what, launching=launching) from error
        except BotoCoreError as error:
            raise unanswered(error, what) from error

    def _run(self, machine_id: str, request: dict[str, Any]) -> Found:
        try:
            answer = self._ec2.run_instances(**request)
        except ClientError as error:
            if code_of(error) != SAME_TOKEN_OTHER_REQUEST:
                raise
            # An earlier launch had another secret or another zone. Its machine is the one to use.
            found = [one for one in self._list(TAG_MACHINE, machine_id) if not one.ended]
            if not found:
                raise Unavailable(
                    f"EC2 has launched {machine_id} but does not list it yet; the service tries again."
                ) from error
            return found[0]
        return _found(answer["Instances"][0])

    def _terminate(self, external_id: str) -> None:
        try:
            self._ec2.terminate_instances(InstanceIds=[external_id])
        except ClientError as error:
            if code_of(error) not in NOT_FOUND:
                raise

    def _list(self, tag: str, value: str) -> Sequence[Found]:
        pages = self._ec2.get_paginator("describe_instances").paginate(
            Filters=[{"Name": f"tag:{tag}", "Values": [value]}], PaginationConfig={"PageSize": _PAGE}
        )
        return [
            _found(instance)
            for page in pages
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]

    def _request(self, machine: Machine, join: JoinBy) -> dict[str, Any]:
        """Return the arguments of `RunInstances`, for exactly one machine or none."""
        settings = self._settings
        if machine.region != settings.region:
            raise ProviderRefused(f"HEADWAY_EC2_REGION is {settings.region}; {machine.region} is not used.")
        tags = {
            "Name": join.node_name,
            TAG_CLUSTER: settings.cluster,
            TAG_MACHINE: machine.id,
            TAG_NODE: join.node_name,
        }
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        request: dict[str, Any] = {
            "ClientToken": machine.id,
            "MinCount": 1,
            "MaxCount": 1,
            "ImageId": settings.image,
            "InstanceType": machine.instance_type,
            "UserData": self._user_data(machine, join),
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": listed},
                {"ResourceType": "volume", "Tags": listed},
            ],
        }
        request |= self._place(machine.zone)
        if settings.security_groups:
            request["SecurityGroupIds"] = [*settings.security_groups]
        if settings.instance_profile:
            request["IamInstanceProfile"] = {"Name": settings.instance_profile}
        if machine.market is Market.SPOT:
            # Without a maximum price the limit is the on-demand price, and the spot price is what is paid.
            spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
            del request["InstanceInitiatedShutdownBehavior"]  # a one-time spot machine always terminates
        return request

    def _place(self, zone: str) -> dict[str, Any]:
        subnets = self._settings.subnets
        if not subnets:
            return {"Placement": {"AvailabilityZone": zone}} if zone else {}
        if zone and zone not in subnets:
            raise ProviderRefused(f"HEADWAY_EC2_SUBNETS has no subnet in {zone}; add one, or rent elsewhere.")
        return {"SubnetId": subnets[zone] if zone else next(iter(subnets.values()))}

    def _user_data(self, machine: Machine, join: JoinBy) -> str:
        values = {
            "url": join.url,
            "token": join.token,
            "node": join.node_name,
            "slots": str(machine.slots),
            "device_kind": machine.device_kind,
        }
        for name, value in values.items():
            if not _SAFE_IN_SCRIPT.fullmatch(value):
                raise ProviderRefused(f"The {name} has characters that are not allowed in a start script.")
        return self._settings.user_data.substitute(values)


def _found(instance: dict[str, Any]) -> Found:
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
    ended = instance["State"]["Name"] in _ENDED
    why = instance.get("StateTransitionReason") or ""
    reason = instance.get("StateReason") or {}
    return Found(
        external_id=instance["InstanceId"],
        machine_id=tags.get(TAG_MACHINE, ""),
        ended=ended,
        billed_from=instance["LaunchTime"].astimezone(UTC),
        billed_to=_ended_at(why) if ended else None,
        message=reason.get("Message") or why,
    )


def _ended_at(why: str) -> datetime | None:
    """Return the end of the machine from EC2's transition reason, or None if it has no time."""
    match = _ENDED_AT.search(why)
    return None if match is None else datetime.fromisoformat(match[1]).replace(tzinfo=UTC)
