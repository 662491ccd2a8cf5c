"""`headway up --rent`: machines of this host, rented by the real service for a real job."""

from __future__ import annotations

import os
import signal
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from headway.contract.views.machines import MachineView
from headway.errors import HeadwayError
from headway.local.rented import MachineFolder, machine_folders
from headway.local.stack import LocalStack
from tests.integration.local.footprint import processes_of, until

SETTINGS = {"HEADWAY_RENT_EVERY_S": "0.5", "HEADWAY_IDLE_S": "1"}
SMALL = {"instance_type": "small", "slots": 1, "spot_usd_per_h": 0.1, "min_billed_s": 0}


@pytest.fixture
def offers(tmp_path: Path) -> Path:
    file = tmp_path / "offers.yaml"
    file.write_text(yaml.safe_dump({"offers": [SMALL]}))
    return file


def submit(client: Client, work: Path) -> str:
    spec = {
        "name": "waiter",
        "run": f"python train.py {work}",
        "workdir": str(work),
        "market": "spot",
        "elastic": {"resize": "restart"},
        "checkpoint": {"grace_s": 5},
    }
    return client.submit(JobSpec.model_validate(spec)).id


def states(client: Client) -> list[str]:
    return sorted(one.state for one in client.machines())


def only(client: Client, state: str) -> MachineView:
    (machine,) = [one for one in client.machines() if one.state == state]
    return machine


@pytest.mark.slow
@pytest.mark.timeout(900)  # two machines and agents come up one after the other
def test_a_job_brings_its_machine_survives_its_end_and_gives_the_next_one_back(
    data: Path, work: Path, offers: Path
) -> None:
    with LocalStack(data, agents=0, rent=offers, settings=SETTINGS) as stack, stack.client() as client:
        assert list(client.nodes()) == []
        job = submit(client, work)
        until((work / "started-1").exists, "the script to start on a machine")
        first = only(client, "running")
        assert first.market == "spot"
        assert first.reason == "JOINED"
        pid = MachineFolder(data / "machines" / first.id).pid
        scheduler = stack.programs["scheduler"].pid
        assert scheduler is not None
        os.kill(scheduler, signal.SIGKILL)
        interruptions = [{"machine": first.external_id}]
        offers.write_text(yaml.safe_dump({"offers": [SMALL], "interruptions": interruptions}))
        until((work / "started-2").exists, "the script to start on another machine")
        assert MachineFolder(data / "machines" / first.id).pid != pid
        (work / "finish").touch()
        *_, last = client.watch(job, every_s=0.1)
        assert last.state is JobState.SUCCEEDED, last.message
        until(lambda: states(client) == ["gone", "gone"], "the second machine to be given back")
        taken, given_back = sorted(client.machines(), key=lambda one: one.requested_at)
        assert (taken.reason, given_back.reason) == ("SPOT_RECLAIMED", "IDLE")
        assert all(node.state is not NodeState.READY for node in client.nodes())
        assert leases(client) == provider(data)
    until(lambda: not processes_of(data), "everything to be gone")


def leases(client: Client) -> dict[str, tuple[datetime | None, datetime | None]]:
    return {one.id: (one.billed_from, one.billed_to) for one in client.machines()}


def provider(data: Path) -> dict[str, tuple[datetime | None, datetime | None]]:
    """Return begin and end of each machine, from its folder."""
    found = {}
    for folder in machine_folders(data / "machines"):
        lease, ended = folder.lease, folder.ended()
        assert lease is not None
        found[lease.machine_id] = (datetime.fromisoformat(lease.billed_from), ended[0] if ended else None)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_stopping_gives_everything_back_and_the_next_start_knows(
    data: Path, work: Path, offers: Path
) -> None:
    with LocalStack(data, agents=0, rent=offers, settings=SETTINGS) as stack, stack.client() as client:
        job = submit(client, work)
        until((work / "started-1").exists, "the script to start")
    until(lambda: not processes_of(data), "everything to be gone")
    with LocalStack(data, agents=0, rent=offers, settings=SETTINGS) as stack, stack.client() as client:
        until(lambda: "gone" in states(client), "the lease to end")
        until((work / "started-2").exists, "the script to start again")
        (work / "finish").touch()
        *_, last = client.watch(job, every_s=0.1)
        assert last.state is JobState.SUCCEEDED, last.message


@pytest.mark.slow
def test_a_wrong_file_of_offers_is_said_at_once(data: Path, offers: Path) -> None:
    offers.write_text("offers: [{instance_type: small, slots: none}]")
    with pytest.raises(HeadwayError, match=r"offers\.yaml: offers\.0\.slots"):
        LocalStack(data, agents=0, rent=offers).start()
    assert not processes_of(data)
