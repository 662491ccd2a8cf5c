"""One trace spans a job's way: submitted, placed by a round, commanded, started, and its first step. The service is real, and so
is the code of the agent that makes spans; between them the test carries commands and news.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from headway.contract.agents import RankMessage, RanksStarted
from headway.tracing import Otlp
from tests.collector import Collector
from tests.integration.service.conftest import entry, harness_of, make_settings, run_of
from tests.integration.service.test_life_of_a_job import message
from worker_agent.telemetry.facts import CommandRead, EntryQueued
from worker_agent.telemetry.traces import RunTraces

CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STEPS = ("submit", "round", "command", "start_ranks", "first_step")


async def test_from_submit_to_the_first_step_it_is_one_trace(
    database_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}/storage")
    with Collector().running() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        of_agent = Otlp("headway-agent", "alpha", "0")
        traces = RunTraces(of_agent, "alpha")
        async with harness_of(settings, spans=Otlp("headway-api", "one", "0")) as harness:
            agent = await harness.join()
            harness.client.headers["traceparent"] = CLIENT
            job = await harness.submit(env={"PASSPHRASE": "hunter2"}, run="python train.py --key open-sesame")
            await harness.turn()
            run = run_of(await agent.commands())
            traces.receive(CommandRead(run, 0.0))
            at = datetime.now(UTC)
            head = {"sequence": 1, "job_id": run.job_id, "generation": run.generation, "at": at}
            traces.receive(EntryQueued(RanksStarted(**head, how="zygote")))
            first = message("first_step", run.generation, samples=32)
            traces.receive(EntryQueued(RankMessage(**head, rank=0, **first)))
            await agent.report(entry("ranks_started", run, how="zygote"), entry("rank_message", run, **first))
        of_agent.close()
    spans = {name: collector.named(name) for name in STEPS}
    assert {name: len(found) for name, found in spans.items()} == dict.fromkeys(STEPS, 1)
    chain = [spans[name][0] for name in STEPS]
    assert chain[0].parent_id == "00f067aa0ba902b7", "whoever submits may have begun the trace"
    assert [one.parent_id for one in chain[1:]] == [one.span_id for one in chain[:-1]]
    assert {one.trace_id for one in collector.spans} == {"4bf92f3577b34da6a3ce929d0e0e4736"}
    assert [one.program for one in chain] == ["headway-api"] * 3 + ["headway-agent"] * 2
    assert all(one.began_ns <= one.ended_ns for one in chain)
    assert {one.attributes["headway.job_id"] for one in chain} == {job.id}
    assert [one.attributes["headway.generation"] for one in chain] == [0, 1, 1, 1, 1]
    assert {one.attributes["headway.project"] for one in chain[:3]} == {"default"}
    for secret in (b"hunter2", b"PASSPHRASE", b"sesame", b"train.py"):
        assert secret not in collector.raw


async def test_nobody_has_to_have_begun_it_and_a_stop_is_part_of_it(
    database_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}/storage")
    with Collector().running() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        async with harness_of(settings, spans=Otlp("headway-api", "one", "0")) as harness:
            agent = await harness.join()
            job = await harness.submit(elastic={"min": 1, "max": 2})
            await harness.post("jobs/job/resize", {"slots": 1})
            await harness.turn()
            run = run_of(await agent.commands())
            await agent.report(entry("ranks_started", run, how="zygote"))
            await harness.post("jobs/job/cancel")
            await harness.turn()
            (stop,) = await agent.commands()
            await agent.report()
    (submitted,), (placed,) = collector.named("submit"), collector.named("round")
    assert submitted.parent_id == ""
    assert placed.parent_id == submitted.span_id
    commands = {one.attributes["headway.command"]: one for one in collector.named("command")}
    assert set(commands) == {"run", "stop"}
    assert {one.parent_id for one in commands.values()} == {placed.span_id}
    assert stop.traceparent == f"00-{submitted.trace_id}-{commands['stop'].span_id}-01"
    assert {one.attributes["headway.job_id"] for one in collector.spans} == {job.id}
