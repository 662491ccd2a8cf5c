"""Bad devices, through the whole of Headway: a job leaves its slot at once, nobody gets it, and a probe gives it back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from headway.contract.health import FaultCause, FaultGrade
from headway.contract.views.jobs import Reason
from headway.contract.views.nodes import SlotView
from headway.local.postgres import EmbeddedPostgres
from service.adapters.postgres.database import Database
from service.domain.nodes.health import Quarantine
from tests.e2e.conftest import Cluster, PatientJob


def slot_of(cluster: Cluster, node: str, index: int) -> SlotView:
    (view,) = [one for one in cluster.client.nodes() if one.name == node]
    return view.slots[index]


@pytest.mark.slow
def test_a_live_job_leaves_a_slot_that_an_operator_distrusts(patient: PatientJob) -> None:
    cluster = patient.cluster
    patient.start(3, most=3)  # of four: the fourth takes the place of the bad one
    node, slots = max(patient.view().allocation.items(), key=lambda one: len(one[1]))
    slot = str(slots[0])
    try:
        moved = patient.next_event(
            "switch", lambda: cluster.headway("quarantine", node, slot, "--why", "smells of smoke")
        )
        assert (moved.data["from"], moved.data["to"], moved.data["how"]) == (3, 3, "live")
        assert moved.data["lost_steps"] == 0
        (prepared,) = [one for one in patient.events("prepare") if one.reason is Reason.BAD_DEVICE]
        why = f"slot {slot} of {node} is in quarantine: put in quarantine by an operator (smells of smoke)"
        assert prepared.message == f"moves its 3 cpu slots: {why}"
        assert int(slot) not in patient.view().allocation.get(node, [])
        (told,) = patient.events("quarantine")
        assert (told.reason, told.message) == (Reason.BAD_DEVICE, why)
        confined = slot_of(cluster, node, int(slot)).quarantine
        assert confined is not None
        assert confined.message == "put in quarantine by an operator (smells of smoke)"
        cluster.until(lambda: slot_of(cluster, node, int(slot)).job_id is None, "the slot to be empty")
        cluster.client.release(node, int(slot))
        assert slot_of(cluster, node, int(slot)).quarantine is None
    finally:
        cluster.client.release(node, int(slot))
    done = patient.finish()
    assert (done.attempt, done.preemptions, done.progress.lost_samples) == (1, 0, 0)


@pytest.mark.slow
def test_a_suspicious_slot_is_tried_out_by_its_agent_and_given_back(cluster: Cluster) -> None:
    """The fault is put into the database, since a core has none; the probe and all that follows are real."""
    node = next(cluster.client.nodes())
    now = datetime.now(UTC)
    suspicious = Quarantine(
        node_id=node.id,
        slot=1,
        device="",
        grade=FaultGrade.SUSPICIOUS,
        cause=FaultCause.XID,
        message="Xid 63",
        since=now - timedelta(minutes=1),
        probe_at=now,
    )
    try:
        asyncio.run(_store(cluster, suspicious))
        cluster.until(lambda: slot_of(cluster, node.name, 1).quarantine is None, "the probe")
    finally:
        cluster.client.release(node.name, 1)
    probes = cluster.stack.data / "agents" / node.name / "probes.json"
    assert '"cpu"' in probes.read_text()


async def _store(cluster: Cluster, quarantine: Quarantine) -> None:
    async def silent(*_: object) -> None:
        """No wake-up is sent."""

    database = Database(EmbeddedPostgres(cluster.stack.data / "postgres").url(), silent)
    async with database.begin() as tx:
        assert await tx.nodes.save_quarantine(quarantine)
    await database.close()
