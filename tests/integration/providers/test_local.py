"""Machines that this one plays: real processes, steered by a file."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from headway.contract.values.markets import Market
from headway.local.machine import descendants
from headway.local.rented import Lease, MachineFolder, machine_folders
from service.adapters.providers.local import LocalProvider
from service.domain.rental.machines import Machine, MachineState
from service.domain.shared.errors import NoCapacity, ProviderRefused, Unavailable
from service.usecases.ports.rental import JoinBy
from tests.waiting import until

JOIN = JoinBy(url="http://127.0.0.1:9", token="once", node_name="spot-1")
SMALL = {"instance_type": "small", "slots": 1, "on_demand_usd_per_h": 0.2, "spot_usd_per_h": 0.05}


def machine_of(machine_id: str, **fields: Any) -> Machine:
    now = datetime.now(UTC)
    return Machine(
        **{
            "id": machine_id,
            "provider": "local",
            "region": "here",
            "instance_type": "small",
            "device_kind": "cpu",
            "slots": 1,
            "market": Market.SPOT,
            "usd_per_h": 0.05,
            "state": MachineState.WANTED,
            "reason": "WORTH_IT",
            "message": "",
            "requested_at": now,
            "state_since": now,
            **fields,
        }
    )


@dataclass
class Place:
    """A file of offers, and the provider that reads it."""

    file: Path
    folder: Path
    provider: LocalProvider

    def offer(self, *offers: dict[str, Any], **rest: Any) -> None:
        temporary = self.file.with_suffix(".tmp")
        temporary.write_text(yaml.safe_dump({"offers": list(offers), **rest}))
        temporary.replace(self.file)

    def machine(self, machine_id: str) -> MachineFolder:
        return MachineFolder(self.folder / machine_id)

    async def runs(self, machine_id: str) -> int:
        """The machine's process, once it runs."""
        await until(lambda: self.machine(machine_id).pid is not None)
        pid = self.machine(machine_id).pid
        assert pid is not None
        return pid

    def agents(self, machine_id: str) -> list[int]:
        pid = self.machine(machine_id).pid
        return [] if pid is None else descendants(pid)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    file, folder = tmp_path / "offers.yaml", tmp_path / "machines"
    made = Place(file, folder, LocalProvider(file, folder))
    made.offer(SMALL)
    yield made
    for machine in machine_folders(folder):
        machine.end()


async def test_what_is_on_offer_is_what_the_file_says_now(place: Place) -> None:
    (offer,) = await place.provider.offers()
    assert (offer.instance_type, offer.devices, offer.usd_per_h(Market.SPOT)) == ("small", 1, 0.05)
    place.offer({**SMALL, "spot_usd_per_h": None}, {**SMALL, "instance_type": "large", "slots": 4})
    small, large = await place.provider.offers()
    assert small.usd_per_h(Market.SPOT) is None
    assert large.devices == 4


@pytest.mark.parametrize(
    "text",
    [
        "offers: [",
        "offers: 7",
        "currency: EUR",
        "offers: [{instance_type: small, slots: 0}]",
        "offers: [{instance_type: small, spot_usd_per_h: -1}]",
        "offers: [{instance_type: small, spot_usd_per_h: .nan}]",
        "offers: [{instance_type: small, spot_usd_per_h: 0}]",
        "offers: [{instance_type: small, on_demand_usd_per_h: 1.0e+300}]",
        "offers: [{instance_type: small}, {instance_type: small}]",
        "offers: [{instance_type: small, price: 3}]",
    ],
)
async def test_a_file_that_makes_no_sense_is_said_to(place: Place, text: str) -> None:
    place.file.write_text(text)
    with pytest.raises(Unavailable, match=r"offers\.yaml"):
        await place.provider.offers()


async def test_a_launch_that_is_asked_for_twice_makes_one_machine(place: Place) -> None:
    first = await place.provider.launch(machine_of("m1"), JOIN)
    pid = await place.runs("m1")
    again = LocalProvider(place.file, place.folder)  # as after a restart of the service
    assert await again.launch(machine_of("m1"), JOIN) == first
    assert await again.list() == [first]
    assert place.machine("m1").pid == pid


async def test_a_machine_that_is_ended_before_it_has_a_process_never_runs(place: Place) -> None:
    machine = place.machine("m1")
    machine.rent(
        Lease(
            machine_id="m1",
            external_id="local-m1",
            instance_type="small",
            market="spot",
            slots=1,
            device_kind="cpu",
            url=JOIN.url,
            node_name=JOIN.node_name,
            offers=str(place.file),
            launch_delay_s=0.0,
            joins=True,
            billed_from=datetime.now(UTC).isoformat(),
        )
    )
    machine.end()
    late = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headway.local.machine", str(machine.path)
    )
    assert await late.wait() == 0
    assert not machine.pid_file.exists()
    assert [one.ended for one in await place.provider.list()] == [True]


async def test_capacity_and_prices_are_those_of_the_market(place: Place) -> None:
    place.offer({**SMALL, "spot_capacity": 1, "on_demand_usd_per_h": None})
    await place.provider.launch(machine_of("m1"), JOIN)
    with pytest.raises(NoCapacity, match="all 1 spot machines of small are taken"):
        await place.provider.launch(machine_of("m2"), JOIN)
    with pytest.raises(ProviderRefused, match="not sold as on-demand"):
        await place.provider.launch(machine_of("m3", market=Market.ON_DEMAND), JOIN)
    with pytest.raises(ProviderRefused, match="huge is not on offer"):
        await place.provider.launch(machine_of("m4", instance_type="huge"), JOIN)
    assert [one.machine_id for one in await place.provider.list()] == ["m1"]


async def test_a_machine_that_is_given_back_ends_with_all_that_runs_on_it(place: Place) -> None:
    found = await place.provider.launch(machine_of("m1"), JOIN)
    await until(lambda: len(place.agents("m1")) >= 1)
    processes = [await place.runs("m1"), *place.agents("m1")]
    await place.provider.terminate(found.external_id)
    (ended,) = await place.provider.list()
    assert ended.ended
    assert ended.billed_from == found.billed_from
    assert ended.billed_to is not None
    assert ended.billed_to > ended.billed_from
    await until(lambda: not any(_lives(pid) for pid in processes))
    await place.provider.terminate(found.external_id)
    assert await place.provider.list() == [ended]
    assert (await place.provider.launch(machine_of("m1"), JOIN)).ended, "a launch does not bring it back"


async def test_one_that_is_taken_away_says_so_before(place: Place) -> None:
    place.offer({**SMALL, "joins": False})
    found = await place.provider.launch(machine_of("m1"), JOIN)
    await place.runs("m1")
    place.offer(SMALL, interruptions=[{"machine": found.external_id, "notice_s": 2}])
    await until(lambda: place.machine("m1").pid is None)
    (ended,) = await place.provider.list()
    assert ended.message == "its provider took it away"


async def test_a_notice_is_served_as_ec2_serves_it(place: Place) -> None:
    found = await place.provider.launch(machine_of("m1"), JOIN)
    # Between fork and exec a process has the environment of its parent.
    await until(lambda: any("HEADWAY_METADATA_URL" in _environment(one) for one in place.agents("m1")))
    url = next(
        environment["HEADWAY_METADATA_URL"]
        for environment in map(_environment, place.agents("m1"))
        if "HEADWAY_METADATA_URL" in environment
    )
    action = f"{url}/latest/meta-data/spot/instance-action"
    async with httpx.AsyncClient() as client:
        assert (await client.put(f"{url}/latest/api/token")).status_code == 200
        assert (await client.get(action)).status_code == 404
        place.offer(SMALL, interruptions=[{"machine": found.external_id, "notice_s": 60}])

        async def told() -> bool:
            return (await client.get(action)).status_code == 200

        await until(told)
        said = (await client.get(action)).json()
    assert said["action"] == "terminate"
    left_s = (datetime.fromisoformat(said["time"]) - datetime.now(UTC)).total_seconds()
    assert 50 < left_s <= 60


async def test_one_whose_process_was_killed_has_ended_when_it_was_last_seen(place: Place) -> None:
    place.offer({**SMALL, "joins": False})
    found = await place.provider.launch(machine_of("m1"), JOIN)
    os.kill(await place.runs("m1"), signal.SIGKILL)
    await until(lambda: place.machine("m1").pid is None)
    (ended,) = await place.provider.list()
    assert ended.ended
    assert ended.billed_to is not None
    assert found.billed_from <= ended.billed_to <= datetime.now(UTC)


async def test_the_service_ends_and_the_machine_stays(place: Place) -> None:
    """Its process has a session of its own: a signal to the service's group does not reach it."""
    await place.provider.launch(machine_of("m1"), JOIN)
    pid = await place.runs("m1")
    assert await asyncio.to_thread(os.getsid, pid) == pid


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _environment(pid: int) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in Path(f"/proc/{pid}/environ").read_text().split("\0") if pair)
    return {name: value for name, _, value in pairs}


def in_time(after: timedelta) -> datetime:
    return datetime.now(UTC) + after


async def test_what_ended_long_ago_leaves_nothing_behind(place: Place) -> None:
    place.offer({**SMALL, "joins": False})
    await place.provider.launch(machine_of("m1"), JOIN)
    await place.runs("m1")
    await place.provider.terminate("local-m1")
    week = timedelta(days=7)
    soon, late = (
        LocalProvider(place.file, place.folder, now=partial(in_time, after)) for after in (week / 2, 2 * week)
    )
    assert [one.ended for one in await soon.list()] == [True]
    assert await late.list() == []
    assert not place.machine("m1").path.exists()
