"""Each thing that can be wrong is found by the real service, with what mends it."""

from __future__ import annotations

import os
import shutil
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from headway.contract.standstills import Standstill
from headway.contract.views.diagnosis import Check, DiagnosisView, Level
from service.api.routes.upkeep.health import VERSION
from service.domain.nodes.diagnosis import COMMAND_LATE_S, LONGEST_CHANGE_S
from service.main import Service
from tests.integration.service.conftest import Harness, entry
from tests.integration.service.test_life_of_a_job import message, start, stop
from tests.waiting import until


async def diagnosis(harness: Harness) -> DiagnosisView:
    response = await harness.client.get("/api/v1/diagnosis")
    assert response.status_code == 200, response.text
    return DiagnosisView.model_validate_json(response.content)


async def found(harness: Harness, name: str) -> Check:
    (check,) = [one for one in (await diagnosis(harness)).checks if one.name == name]
    assert bool(check.why and check.hint) == (check.level is not Level.OK), (
        "a finding says why, and what mends it"
    )
    return check


async def execute(harness: Harness, statement: str, **values: Any) -> None:
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(text(statement), values)


async def lead(harness: Harness) -> None:
    await execute(
        harness,
        "INSERT INTO leadership (id, term, holder, renewed_at) VALUES (1, 1, 'x', now())"
        " ON CONFLICT (id) DO UPDATE SET renewed_at = now()",
    )


async def test_all_is_well(harness: Harness) -> None:
    await harness.join()
    await execute(harness, "UPDATE nodes SET agent_version = :version", version=VERSION)
    await lead(harness)
    view = await diagnosis(harness)
    assert [one.name for one in view.checks if one.level is not Level.OK] == []
    assert view.version == VERSION
    host, _, port = view.agent_redis.partition(":")
    assert host == "127.0.0.1"
    assert port.isdigit()


async def test_only_users_may_ask(harness: Harness) -> None:
    refused = await harness.client.get("/api/v1/diagnosis", headers={"Authorization": "Bearer wrong"})
    assert refused.status_code == 401


async def test_no_scheduler(harness: Harness) -> None:
    check = await found(harness, "scheduler")
    assert (check.level, check.found) == (Level.FAIL, "No scheduler has ever led.")
    await lead(harness)
    assert (await found(harness, "scheduler")).level is Level.OK
    await execute(harness, "UPDATE leadership SET renewed_at = now() - interval '5 minutes'")
    assert "has led for 5m0" in (await found(harness, "scheduler")).found


async def test_no_node(harness: Harness) -> None:
    assert (await found(harness, "nodes")).level is Level.WARN
    await harness.join()
    assert (await found(harness, "nodes")).found == "1 of 1 nodes are READY."


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("lost nodes", "state = 'LOST'", "LOST: alpha."),
        ("reports", "seen_at = now() - interval '1 minute'", "No report for more than 15 s from alpha."),
        ("agents", "agent_version = '0.0.9'", "agents have 0.0.9: alpha."),
    ],
)
async def test_a_node_that_is_not_well(harness: Harness, name: str, change: str, said: str) -> None:
    await harness.join()
    await execute(harness, "UPDATE nodes SET agent_version = :version", version=VERSION)
    assert (await found(harness, name)).level is Level.OK
    await execute(harness, f"UPDATE nodes SET {change}")
    check = await found(harness, name)
    assert check.level is Level.WARN
    assert said in check.found


async def test_a_slot_in_quarantine(harness: Harness) -> None:
    await harness.join()
    await harness.post("nodes/alpha/slots/1/quarantine", {"why": "it smells"})
    check = await found(harness, "quarantine")
    assert (check.level, check.found) == (Level.WARN, "Slots in quarantine: 1, on alpha.")
    await harness.post("nodes/alpha/slots/1/release")
    assert (await found(harness, "quarantine")).level is Level.OK


async def test_save_that_takes_longer_than_the_kill_wait_of_a_pilot_is_found(harness: Harness) -> None:
    agent = await harness.join(host={"kill_wait_s": 30.0})
    await harness.submit()
    run = await start(harness, agent)
    for took_s, level in ((29.0, Level.OK), (31.0, Level.WARN)):
        saved = message("checkpointed", 1, uri="x", samples=9, size_bytes=1, save_s=0.1, total_s=took_s)
        await agent.report(entry("rank_message", run, **saved))
        check = await found(harness, "saves")
        assert check.level is level
    assert check.found.endswith(": job (31 s, killed after 30 s).")
    assert (await harness.job()).progress.checkpoint_took_s == 31.0
    await stop(agent, run, exit_code=0)
    assert (await found(harness, "saves")).level is Level.OK


async def test_a_command_that_nobody_takes_up(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    await harness.turn()
    assert (await found(harness, "commands")).level is Level.OK, "it may still come"
    await execute(
        harness, "UPDATE commands SET created_at = now() - make_interval(secs => :s)", s=COMMAND_LATE_S + 1
    )
    check = await found(harness, "commands")
    assert check.level is Level.FAIL
    assert "1, sent to alpha" in check.found
    await agent.commands()
    await agent.report()
    assert (await found(harness, "commands")).level is Level.OK


async def test_a_job_between_two_states(harness: Harness) -> None:
    await harness.join()
    await harness.submit("slow")
    await harness.turn()
    assert (await found(harness, "jobs")).level is Level.OK
    await execute(
        harness, "UPDATE jobs SET state_since = now() - make_interval(secs => :s)", s=LONGEST_CHANGE_S + 1
    )
    assert "slow (STARTING for 15m0" in (await found(harness, "jobs")).found


async def test_a_job_without_money(harness: Harness) -> None:
    await harness.submit("poor")
    assert (await found(harness, "budgets")).level is Level.OK
    await execute(harness, "UPDATE jobs SET reason = 'BUDGET'")
    assert (await found(harness, "budgets")).found == "Out of budget: poor."


async def test_a_database_from_a_backup(harness: Harness) -> None:
    async def names() -> set[str]:
        return {one.name for one in (await diagnosis(harness)).checks}

    assert "restore" not in await names()
    await execute(
        harness, "UPDATE database_state SET backed_up_at = now() - interval '1 day', restored_at = now()"
    )
    assert "may be lost" in (await found(harness, "restore")).why
    await execute(harness, "UPDATE database_state SET restored_at = now() - interval '8 days'")
    assert "restore" not in await names()


async def test_storage_that_is_gone(harness: Harness, tmp_path: Path) -> None:
    assert (await found(harness, "storage")).level is Level.OK
    assert list((tmp_path / "storage").rglob("*.*")) == [], "nothing stays of it"
    shutil.rmtree(tmp_path / "storage")
    (tmp_path / "storage").write_text("a file stands where the folder was")
    assert (await found(harness, "storage")).level is Level.FAIL


async def test_stores_that_do_not_answer(harness: Harness) -> None:
    """It answers nevertheless: that is when it is asked."""
    await harness.service.redis.connection_pool.disconnect()
    harness.service.redis.connection_pool.connection_kwargs["port"] = 1
    check = await found(harness, "stores")
    assert check.level is Level.FAIL
    assert "Redis does not answer" in check.found


async def test_standstill_of_a_loop_reaches_the_diagnosis_of_every_process(harness: Harness) -> None:
    service = harness.service
    heard: list[Standstill] = []
    async with service.watching_itself("api"):
        await harness.client.get("/livez")
        threading.Event().wait(1.5)  # a standstill longer than the delays of a busy machine
        await until(lambda: _is_shared(service, heard))
    assert any("threading.py" in frame for frame in heard[0].stack)
    (check,) = [one for one in (await diagnosis(harness)).checks if one.name == "loops"]
    assert check.level is Level.WARN
    assert f"process {os.getpid()}" in check.found
    count = service.telemetry.registry.get_sample_value("headway_loop_standstill_seconds_count")
    assert count is not None
    assert count >= 1


async def _is_shared(service: Service, heard: list[Standstill]) -> bool:
    heard[:] = await service.standstills.since(datetime.now(UTC) - timedelta(minutes=5))
    return bool(heard)
