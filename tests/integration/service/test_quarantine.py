"""Bad devices: jobs leave their slots, nobody gets these, probes and operators release them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text

from headway.contract.agents import ReportReply
from headway.contract.health import FaultCause, FaultGrade, QuarantineView
from headway.contract.runtime import Progress
from headway.contract.views.jobs import JobState, Page, Reason
from headway.contract.views.nodes import NodeView
from service.domain.allocation.decision.plan import Action
from service.domain.nodes.health import FIRST_PROBE_S, SLOW_FOR_S, SLOW_WINDOWS
from service.usecases.nodes.quarantine import note_slow_ranks
from service.usecases.rounds.apply import apply_plan
from service.usecases.rounds.schedule import _decide
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness


@pytest_asyncio.fixture
async def cast(harness: Harness) -> Cast:
    return Cast(harness)


def fault(slot: int, code: int | None = 63, cause: str = "xid", **fields: Any) -> dict[str, Any]:
    return {"kind": "device_fault", "slot": slot, "cause": cause, "code": code, **fields}


def probed(slot: int, healthy: bool, message: str = "") -> dict[str, Any]:
    return {"kind": "device_probed", "slot": slot, "healthy": healthy, "message": message}


async def regular(cast: Cast, node: str) -> ReportReply:
    return await cast.agents[node].report()


async def view(cast: Cast, node: str) -> NodeView:
    answer = await cast.harness.client.get("/api/v1/nodes")
    return next(one for one in Page[NodeView].model_validate_json(answer.content).items if one.name == node)


async def confined(cast: Cast, node: str, slot: int) -> QuarantineView | None:
    return next(one.quarantine for one in (await view(cast, node)).slots if one.index == slot)


async def pass_s(cast: Cast, seconds: float) -> None:
    """Time passes for the quarantines: they began earlier, and are due earlier."""
    async with cast.harness.service.database.engine.begin() as connection:
        by = "make_interval(secs => CAST(:by AS float8))"
        skipped = text(f"UPDATE quarantines SET since = since - {by}, probe_at = probe_at - {by}")
        await connection.execute(skipped, {"by": seconds})


async def test_a_live_job_leaves_a_bad_slot_in_place(cast: Cast) -> None:
    await cast.join(alpha=1, beta=2)
    await cast.begin(2, elastic={"min": 2, "max": 2})
    node, slot = next(home for home in cast.homes.values() if home[0] == "beta")
    await cast.news("beta", fault(slot, 64, message="row 17"))
    bad = await confined(cast, "beta", slot)
    assert bad is not None
    assert (bad.grade, bad.cause, bad.probe_at) == (FaultGrade.FATAL, FaultCause.XID, None)
    assert bad.message == "Xid 64: bad memory could not be replaced by spare memory (row 17)"
    (event,) = await cast.events("quarantine")
    assert (event["reason"], event["data"]) == (
        Reason.BAD_DEVICE,
        {"node": "beta", "slot": slot, "grade": "fatal", "cause": "xid"},
    )
    await cast.turn()
    assert (await cast.job()).reason == Reason.BAD_DEVICE
    newcomer = next(who for who in cast.homes if who[0] == 2)
    taken = {home for who, home in cast.homes.items() if who[0] == 1}
    assert {cast.homes[newcomer]} == {("alpha", 0), ("beta", 0), ("beta", 1)} - taken
    await cast.ready(newcomer)
    leaver = next(who for who, home in cast.homes.items() if who[0] == 1 and home == (node, slot))
    await cast.switch(2)
    await cast.leave(leaver, 2)
    job = await cast.job()
    assert (job.state, job.size, job.attempt) == (JobState.RUNNING, 2, 1)
    assert job.allocation == {"alpha": [0], "beta": [1 - slot]}
    await cast.check()
    await cast.harness.submit("second")
    await cast.turn()
    assert (await cast.job("second")).state is JobState.PENDING, "nobody gets the bad slot"


async def test_a_job_without_anywhere_else_goes_on_with_less(cast: Cast) -> None:
    await cast.join(alpha=1, beta=1)
    await cast.begin(2)
    await cast.news("beta", fault(0, 79))
    await cast.turn()
    assert set(cast.members(2).values()) == {0}
    assert (await cast.job()).message.startswith(
        "from 2 cpu slots to 1 cpu slot: slot 0 of beta is in quarantine"
    )


async def test_a_plain_job_is_stopped_and_started_elsewhere(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.begin(1, elastic={"min": 1, "max": 1, "resize": "restart"})
    await cast.news("alpha", fault(0))
    await cast.turn()
    assert {mode for *_, mode in cast.stops()} == {"checkpoint"}
    await cast.stopped(1)
    job = await cast.job()
    assert (job.state, job.reason, job.infrastructure_failures) == (JobState.PENDING, Reason.BAD_DEVICE, 0)
    await cast.turn()
    job = await cast.job()
    assert job.state is JobState.PENDING
    assert job.message.endswith("1 slot more in quarantine (`headway nodes`)")
    await cast.join(beta=1)
    await cast.turn()
    assert list(cast.started(2)) == ["beta"]


async def test_the_scripts_own_fault_is_told_to_it_alone(cast: Cast) -> None:
    await cast.join(alpha=2)
    await cast.begin(1)
    _, slot = next(iter(cast.homes.values()))
    await cast.news("alpha", fault(slot, 31), fault(1 - slot, 31))
    (event,) = await cast.events("device_fault")
    assert (event["reason"], event["data"]) == (None, {"node": "alpha", "slot": slot})
    assert "Xid 31: the program touched memory that is not its own" in event["message"]
    assert await confined(cast, "alpha", slot) is None
    assert await confined(cast, "alpha", 1 - slot) is None


async def test_a_good_probe_releases_a_suspicious_slot(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.news("alpha", fault(0))
    assert (await regular(cast, "alpha")).probe == [], "not yet"
    await cast.harness.submit("waits")
    await cast.turn()
    assert (await cast.job("waits")).state is JobState.PENDING
    await pass_s(cast, FIRST_PROBE_S + 1)
    assert (await regular(cast, "alpha")).probe == [0]
    assert (await regular(cast, "alpha")).probe == [0], "asked for until it is answered"
    await cast.news("alpha", probed(0, healthy=True, message="2.1 ms"))
    assert (await regular(cast, "alpha")).probe == []
    assert await confined(cast, "alpha", 0) is None
    await cast.turn()
    assert (await cast.job("waits")).state is JobState.STARTING


async def test_a_bad_probe_postpones(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.news("alpha", fault(0))
    await pass_s(cast, FIRST_PROBE_S + 1)
    await cast.news("alpha", probed(0, healthy=False, message="a wrong product"))
    bad = await confined(cast, "alpha", 0)
    assert bad is not None
    assert bad.probes == 1
    assert bad.message.endswith("; last probe: a wrong product")
    assert (await regular(cast, "alpha")).probe == []
    await pass_s(cast, 2 * FIRST_PROBE_S)
    assert (await regular(cast, "alpha")).probe == [0]


async def test_a_slot_that_a_job_still_holds_is_not_tried(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.begin(1, elastic={"min": 1, "max": 1, "resize": "never"})
    await cast.news("alpha", fault(0))
    await cast.turn()
    assert (await cast.job()).state is JobState.RUNNING, "it stays to its end"
    await pass_s(cast, FIRST_PROBE_S + 1)
    assert (await regular(cast, "alpha")).probe == []
    await cast.die((1, 0), exit_code=0)
    assert (await regular(cast, "alpha")).probe == [0]


async def test_probes_do_not_end_what_an_operator_began(cast: Cast) -> None:
    await cast.join(alpha=2)
    answer = await cast.harness.post("nodes/alpha/slots/1/quarantine", {"why": "smells of smoke"})
    assert answer.status_code == 202
    (slot,) = [one for one in NodeView.model_validate_json(answer.content).slots if one.quarantine]
    assert slot.quarantine is not None
    assert (slot.index, slot.quarantine.grade, slot.quarantine.cause) == (
        1,
        FaultGrade.FATAL,
        FaultCause.OPERATOR,
    )
    assert slot.quarantine.message == "put in quarantine by an operator (smells of smoke)"
    await pass_s(cast, 1e6)
    assert (await regular(cast, "alpha")).probe == []
    await cast.news("alpha", probed(1, healthy=True))
    assert await confined(cast, "alpha", 1) is not None
    answer = await cast.harness.post("nodes/alpha/slots/1/release")
    assert answer.status_code == 202
    assert await confined(cast, "alpha", 1) is None
    assert (await cast.harness.post("nodes/alpha/slots/1/release")).status_code == 202, "said again"


@pytest.mark.parametrize("what", ["quarantine", "release"])
async def test_slots_that_are_not_there(cast: Cast, what: str) -> None:
    await cast.join(alpha=2)
    for path, status in (
        ("nodes/alpha/slots/2", 404),
        ("nodes/beta/slots/0", 404),
        ("nodes/alpha/slots/-1", 422),
    ):
        assert (await cast.harness.post(f"{path}/{what}")).status_code == status
    answer = await cast.harness.post("nodes/alpha/slots/0/quarantine", {"why": "x" * 1001})
    assert answer.status_code == 422
    await cast.news("alpha", fault(7), probed(7, healthy=True))
    assert all(slot.quarantine is None for slot in (await view(cast, "alpha")).slots)


async def test_another_device_is_free_of_it(cast: Cast) -> None:
    def slots(*uuids: str) -> list[dict[str, Any]]:
        return [{"index": at, "device_kind": "a100", "uuid": uuid} for at, uuid in enumerate(uuids)]

    await cast.join(alpha=2)
    agent = cast.agents["alpha"]
    await agent.report(slots=slots("GPU-a", "GPU-b"))
    await cast.news("alpha", fault(0, 79), fault(1, 79))
    await agent.report(slots=slots("GPU-a", "GPU-b"))
    assert [slot.quarantine is None for slot in (await view(cast, "alpha")).slots] == [False, False]
    await agent.report(slots=slots("GPU-c", "GPU-b"))
    assert [slot.quarantine is None for slot in (await view(cast, "alpha")).slots] == [True, False]
    await cast.harness.submit("waits")
    await cast.turn()
    assert (await cast.job("waits")).allocation == {"alpha": [0]}


async def test_a_slot_that_went_bad_since_the_picture_was_taken_is_not_given_out(
    cast: Cast, harness: Harness
) -> None:
    await cast.join(alpha=1)
    await cast.harness.submit("waits")
    async with harness.service.database.begin() as tx:
        snapshot = await tx.rounds.snapshot(harness.clock.now())
    await cast.news("alpha", fault(0))
    (plan, _, _), _ = _decide(snapshot, harness.scheduler.policies, lambda: 0.0)
    assert [one.action for one in plan.decisions] == [Action.START]
    database, launch = harness.service.database, harness.service.launch
    changes, _ = await apply_plan(database, snapshot, plan, launch, "r", harness.clock.now)
    assert changes == []
    assert (await cast.job("waits")).state is JobState.PENDING


async def paces(cast: Cast, at: datetime, *sample_s: float) -> None:
    """Rank 0 says how long each takes for a sample."""
    async with cast.harness.service.database.begin() as tx:
        job = await tx.jobs.lock("job")
        allocation = await tx.grants.allocation(job.id, job.generation)
        assert allocation is not None
        message = Progress(
            rank=0,
            generation=job.generation,
            at_s=1e9,
            epoch=0,
            samples=1,
            total_samples=None,
            steps=1,
            step_s_sum=0.1,
            step_s_squares=0.01,
            global_batch=8,
            local_batch=2,
            accumulation=1,
            rank_sample_s=sample_s,
        )
        await note_slow_ranks(tx, job, allocation, message, at)


@pytest.mark.parametrize(("kind", "bad"), [("a100", True), ("cpu", False)])
async def test_a_slow_rank_is_held_against_its_device_and_not_against_cores(
    cast: Cast, kind: str, bad: bool
) -> None:
    await cast.join(alpha=1, beta=2, kind=kind)
    await cast.begin(3, elastic={"min": 3, "max": 3})
    home = next(home for who, home in cast.homes.items() if who == (1, 2))
    at = cast.harness.clock.now()
    for number in range(SLOW_WINDOWS):
        assert await confined(cast, *home) is None
        await paces(cast, at + timedelta(seconds=number * SLOW_FOR_S / (SLOW_WINDOWS - 1)), 0.01, 0.01, 0.021)
    (slow,) = (await cast.job()).progress.slow_ranks
    assert (slow.slot, slow.windows, slow.told) == (home[1], SLOW_WINDOWS, True)
    await paces(cast, at + timedelta(seconds=2 * SLOW_FOR_S), 0.01, 0.01, 0.021)
    found = await confined(cast, *home)
    assert (found is not None) is bad
    (event,) = await cast.events("quarantine" if bad else "device_fault")
    assert (
        "its rank is slow (it takes 2.1 times as long per sample as its peers, for 60 s)" in event["message"]
    )
    await paces(cast, at + timedelta(seconds=2 * SLOW_FOR_S + 1))
    assert (await cast.job()).progress.slow_ranks == []


async def test_slowness_said_of_a_fatal_slot_changes_nothing(cast: Cast) -> None:
    await cast.join(alpha=3, kind="a100")
    await cast.begin(3, elastic={"min": 3, "max": 3})
    _, slot = cast.homes[1, 2]
    await cast.news("alpha", fault(slot, 79))
    before = await confined(cast, "alpha", slot)
    at = cast.harness.clock.now()
    for number in range(SLOW_WINDOWS):
        await paces(cast, at + timedelta(seconds=10 * number), 0.01, 0.01, 0.021)
    assert await confined(cast, "alpha", slot) == before


async def test_said_twice_it_counts_once(cast: Cast) -> None:
    await cast.join(alpha=1)
    await cast.begin(1)
    agent = cast.agents["alpha"]
    said = {**fault(0), "sequence": 1000, "at": cast.harness.clock.now().isoformat()}
    await agent.send([said], [])
    await agent.send([said], [])
    assert len(await cast.events("quarantine")) == 1


async def test_the_metrics_count_what_is_confined(cast: Cast) -> None:
    await cast.join(alpha=3)
    await cast.news("alpha", fault(0), fault(1), fault(2, 95, cause="temperature"))
    shown = (await cast.harness.client.get("/metrics")).text
    assert 'headway_quarantined_slots{cause="xid"} 2.0' in shown
    assert 'headway_quarantined_slots{cause="temperature"} 1.0' in shown
    assert 'headway_quarantined_slots{cause="gone"} 0.0' in shown
