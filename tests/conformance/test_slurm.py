"""Events that only Slurm knows happen to pilots of a real slurmctld."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.engines.slurm_cluster import Slurm
from service.adapters.providers.slurm import SlurmProvider
from service.domain.rental.machines import Found, Machine
from service.domain.shared.errors import NoCapacity, ProviderRefused, Unavailable
from tests.conformance.leases import ended, launched, machine_of
from tests.waiting import until

pytestmark = pytest.mark.slow


class World:
    """A provider over the real cluster, and its leases."""

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm

    def provider(self, **env: str) -> SlurmProvider:
        given = {
            "HEADWAY_CLUSTER": "own",
            "HEADWAY_SLURM_PARTITIONS": "low=0.05",
            "HEADWAY_SLURM_LOG": str(self.slurm.folder / "pilot-%j.log"),
            "HEADWAY_SLURM_WAIT_S": "3",
        }
        return SlurmProvider.from_env(given | env, lambda: datetime.now(UTC))

    def machine(self) -> Machine:
        return machine_of("slurm", "hall", f"low/cpu:{self.slurm.cpus}", self.slurm.cpus)

    async def launch(self, machine: Machine, **env: str) -> Found:
        return await launched(self.provider(**env), machine)

    async def ended(self, machine: Machine) -> Found:
        """The machine, once it is listed as ended."""
        return await ended(self.provider(), machine)


@pytest.fixture
def world(slurm: Slurm) -> World:
    slurm.command("scancel", "--user=root")
    slurm.until_idle(slurm.nodes)
    return World(slurm)


async def test_preempted_pilot_ends_with_that_reason_and_is_not_requeued(world: World) -> None:
    machines = [world.machine() for _ in range(world.slurm.nodes)]
    for machine in machines:
        await world.launch(machine)
    world.slurm.take_nodes(world.slurm.nodes)
    for machine in machines:
        assert "PREEMPTED" in (await world.ended(machine)).message


async def test_pilot_of_a_node_that_goes_down_ends(world: World) -> None:
    machine = world.machine()
    found = await world.launch(machine)
    (node,) = world.slurm.command(
        "squeue", "--noheader", f"--jobs={found.external_id}", "--format=%N"
    ).split()
    world.slurm.command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    assert "NODE_FAIL" in (await world.ended(machine)).message


async def test_controller_that_is_away_makes_every_outcome_unknown_and_loses_nothing(world: World) -> None:
    machine = world.machine()
    found = await world.launch(machine)
    world.slurm.stop_controller()
    try:
        with pytest.raises(Unavailable):
            await world.provider().list()
        with pytest.raises(Unavailable):
            await world.launch(world.machine())
        with pytest.raises(Unavailable):
            await world.provider().terminate(found.external_id)
    finally:
        world.slurm.start_controller()

    async def answers() -> bool:
        try:
            return [one.external_id for one in await world.provider().list() if not one.ended] == [
                found.external_id
            ]
        except Unavailable:
            return False

    await until(answers)


async def test_killed_slurmd_leaves_its_pilot_running(world: World) -> None:
    machine = world.machine()
    found = await world.launch(machine)
    (node,) = world.slurm.command(
        "squeue", "--noheader", f"--jobs={found.external_id}", "--format=%N"
    ).split()
    world.slurm.kill(node)
    assert [one.ended for one in await world.provider().list() if one.machine_id == machine.id] == [False]
    world.slurm.start_node(node)
    await world.provider().terminate(found.external_id)
    assert (await world.ended(machine)).billed_to is not None


async def test_held_pilot_is_no_capacity_and_leaves_no_job(world: World) -> None:
    machine = world.machine()
    with pytest.raises(NoCapacity, match="waited"):
        await world.launch(machine, HEADWAY_SLURM_OPTIONS="--begin=now+1hour")
    assert world.slurm.command("squeue", "--noheader", "--states=pending").strip() == ""


async def test_waiting_pilot_is_looked_at_less_and_less_often(world: World) -> None:
    world.slurm.command("sdiag", "--reset")
    with pytest.raises(NoCapacity, match="waited"):
        await world.launch(world.machine(), HEADWAY_SLURM_OPTIONS="--begin=now+1hour")
    asked = re.search(r"REQUEST_JOB_INFO\b.*count:(\d+)", world.slurm.command("sdiag"))
    assert asked is not None
    assert int(asked[1]) <= 8, "within 3 s"


@pytest.mark.parametrize("option", ["--time=x", "--constraint=absent", "--begin=yesteryear"])
async def test_request_that_slurm_refuses_ends_the_lease_with_its_sentence(world: World, option: str) -> None:
    with pytest.raises(ProviderRefused, match="sbatch: "):
        await world.launch(world.machine(), HEADWAY_SLURM_OPTIONS=option)


async def test_launch_whose_answer_was_lost_gives_one_pilot(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sbatch` has submitted the job, and its answer never arrives."""
    _shadow(
        tmp_path,
        monkeypatch,
        "sbatch",
        lambda real: f'{real} "$@" >/dev/null; echo Socket timed out >&2; exit 1',
    )
    machine = world.machine()
    with pytest.raises(Unavailable):
        await world.launch(machine)
    (tmp_path / "sbatch").unlink()
    found = await world.launch(machine)
    assert [one.external_id for one in await world.provider().list() if not one.ended] == [found.external_id]


def _shadow(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: Callable[[str], str]) -> None:
    """Put a program before Slurm's own, which `script` receives the path of."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script(f'/usr/bin/{name}')}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
