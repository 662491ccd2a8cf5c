"""`Quarantines`: which slots are kept from jobs, and which were."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from headway.contract.health import FaultCause, FaultGrade
from service.adapters.postgres.database import Database
from service.domain.cluster.snapshot import SlotKey
from service.domain.nodes.health import Quarantine, released
from tests.conformance.conftest import NOW, job_of, node_of, store


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def quarantine(slot: int = 0, node: str = "a", **fields: Any) -> Quarantine:
    return Quarantine(
        **{
            "node_id": node,
            "slot": slot,
            "device": "GPU-1",
            "grade": FaultGrade.SUSPICIOUS,
            "cause": FaultCause.XID,
            "message": "Xid 63",
            "since": NOW,
            "probe_at": at(60),
            **fields,
        }
    )


async def add(database: Database, *quarantines: Quarantine) -> list[bool]:
    async with database.begin() as tx:
        return [await tx.nodes.save_quarantine(one) for one in quarantines]


async def nodes(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("a"), node_of("b"))


async def test_what_was_stored_comes_back(database: Database) -> None:
    await nodes(database)
    fatal = quarantine(3, "b", grade=FaultGrade.FATAL, cause=FaultCause.OPERATOR, probe_at=None, device="")
    assert await add(database, quarantine(1), fatal, quarantine(0)) == [True, True, True]
    async with database.begin() as tx:
        everywhere = await tx.nodes.open_quarantines()
        assert [replace(one, id=None) for one in everywhere] == [quarantine(0), quarantine(1), fatal]
        assert await tx.nodes.open_quarantines(["a"]) == everywhere[:2]
        assert await tx.nodes.open_quarantines([]) == []


async def test_a_slot_is_in_one_quarantine_at_a_time(database: Database) -> None:
    await nodes(database)
    assert await add(database, quarantine(), quarantine(message="another")) == [True, False]
    async with database.begin() as tx:
        (one,) = await tx.nodes.open_quarantines()
        assert one.message == "Xid 63"
        assert await tx.nodes.save_quarantine(released(one, at(70), "well"))
        assert await tx.nodes.open_quarantines() == []
        assert await tx.nodes.save_quarantine(quarantine(since=at(100)))


async def test_changes_of_a_known_one_are_kept(database: Database) -> None:
    await nodes(database)
    await add(database, quarantine())
    async with database.begin() as tx:
        (one,) = await tx.nodes.open_quarantines()
        changed = replace(
            one, grade=FaultGrade.FATAL, cause=FaultCause.ECC, message="worse", probe_at=None, probes=2
        )
        assert await tx.nodes.save_quarantine(changed)
    async with database.begin() as tx:
        assert await tx.nodes.open_quarantines() == [changed]


async def test_the_history_of_a_slot(database: Database) -> None:
    await nodes(database)
    ended = [released(quarantine(since=at(hour * 3600)), at(hour * 3600 + 60), "well") for hour in range(3)]
    await add(database, *reversed(ended), quarantine(1))
    slot = SlotKey("a", 0)
    async with database.begin() as tx:
        found = await tx.nodes.quarantines_of(slot, at(0))
        assert [replace(one, id=None) for one in found] == ended[1:], "those that began after it"
        assert await tx.nodes.quarantines_of(slot, at(2 * 3600)) == []
        assert await tx.nodes.quarantines_of(SlotKey("b", 0), NOW - timedelta(days=1)) == []
    await add(database, quarantine(since=at(-1e6)))
    async with database.begin() as tx:
        (still,) = await tx.nodes.quarantines_of(slot, at(2 * 3600))
        assert still.is_open, "however long ago it began"


async def test_a_round_does_not_see_the_slots(database: Database) -> None:
    async with database.begin() as tx:
        await store(tx, node_of("a", slots=2), node_of("b", slots=1), job_of("j"))
        assert await tx.grants.grant("j", 1, {"a": (1,)}, NOW)
    await add(database, quarantine(1), quarantine(0, "b", message="Xid 79"))
    async with database.begin() as tx:
        snapshot = await tx.rounds.snapshot(NOW)
    assert dict(snapshot.nodes["a"].slots) == {0: "cpu"}
    assert dict(snapshot.nodes["a"].quarantined) == {1: "Xid 63"}
    assert dict(snapshot.nodes["b"].quarantined) == {0: "Xid 79"}
    assert snapshot.free == (SlotKey("a", 0),)
    assert snapshot.held == {SlotKey("a", 1): "j"}
    assert snapshot.kind_of(SlotKey("a", 1)) == ""


async def test_quarantines_go_with_their_node(database: Database) -> None:
    """Whatever deletes nodes need not know of them."""
    await nodes(database)
    await add(database, quarantine(), quarantine(0, "b"))
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql("DELETE FROM nodes WHERE id = 'a'")
    async with database.begin() as tx:
        assert [one.node_id for one in await tx.nodes.open_quarantines()] == ["b"]
