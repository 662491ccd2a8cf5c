"""Machines of EC2, through boto3: on demand and spot, in one region.

A launch carries the machine's id as its client token, so that EC2 itself makes it happen once. The tag `headway:cluster`
says whose a machine is, `headway:machine` which lease it belongs to, `headway:node` how its agent is named.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from headway.contract.markets import Market
from service.adapters.providers.ec2_client import Ec2Clients
from service.adapters.providers.ec2_errors import (
    NOT_FOUND,
    SAME_TOKEN_OTHER_REQUEST,
    answered,
    code_of,
    unanswered,
)
from service.adapters.providers.ec2_offers import Ec2Prices
from service.adapters.providers.ec2_settings import Ec2Settings
from service.domain.errors import ProviderRefused, Unavailable
from service.domain.rental.machines import Found, Machine
from service.domain.rental.offers import Offer
from service.usecases.rental_ports import JoinBy

NAME = "ec2"
TAG_CLUSTER, TAG_MACHINE, TAG_NODE = "headway:cluster", "headway:machine", "headway:node"
_ENDED = frozenset({"shutting-down", "terminated"})
"""From `shutting-down` on nothing is billed."""
_ENDED_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?: (?:GMT|UTC))?\)")
_PAGE = 1000
_MAY_BE_IN_A_SCRIPT = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!&*+,=%-]*")
"""Nothing that ends a line, opens a substitution or closes a quote."""

Answer = TypeVar("Answer")


class Ec2Provider:
    """Implements `usecases.rental_ports.Provider`. Calls block in threads, each with a time limit."""

    name = NAME

    def __init__(self, settings: Ec2Settings, clients: Ec2Clients, now: Callable[[], datetime]) -> None:
        self._settings = settings
        self._ec2 = clients.ec2
        self._prices = Ec2Prices(settings, clients, now)

    async def offers(self) -> Sequence[Offer]:
        """What the region sells of the types that may be rented, by zone.

        Raises:
            Unavailable: prices cannot be had now.
            ProviderRefused: the region bills in another currency than dollars.
        """
        return await self._call("say what it sells", self._prices.offers)

    async def launch(self, machine: Machine, join: JoinBy) -> Found:
        """Rent the machine; asked again for the same `machine.id`, it is the same one.

        Raises:
            NoCapacity: there is none in the zone now, or a quota is used up.
            ProviderRefused: the request is wrong.
            Unavailable: nobody knows.
        """
        request = self._request(machine, join)
        what = f"launch {machine.instance_type} ({machine.market}) in {machine.zone or machine.region}"
        return await self._call(what, lambda: self._run(machine.id, request), launching=True)

    async def terminate(self, external_id: str) -> None:
        """Give it back. One that is gone is no error.

        Raises:
            Unavailable: nobody knows.
        """
        await self._call(f"terminate {external_id}", lambda: self._terminate(external_id))

    async def list(self) -> Sequence[Found]:
        """Every machine with this cluster's tag; EC2 forgets those that ended about an hour ago.

        Raises:
            Unavailable: it cannot be had now, or not whole.
        """
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
            # It was launched before, with another secret or in another zone: that one is the machine.
            found = [one for one in self._list(TAG_MACHINE, machine_id) if not one.ended]
            if not found:
                raise Unavailable(
                    f"EC2 knows of a launch of {machine_id}, and does not list it yet."
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
        """What `RunInstances` is asked: exactly one machine, or none."""
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
            # Without a price of ours the limit is the on-demand price, and the market's is what is paid.
            spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
            del request["InstanceInitiatedShutdownBehavior"]  # a one-time spot machine does so by itself
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
            if not _MAY_BE_IN_A_SCRIPT.fullmatch(value):
                raise ProviderRefused(f"The {name} has characters that cannot stand in a start script.")
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
    """When it ended, from EC2's sentence about it; None where that does not say."""
    match = _ENDED_AT.search(why)
    return None if match is None else datetime.fromisoformat(match[1]).replace(tzinfo=UTC)
