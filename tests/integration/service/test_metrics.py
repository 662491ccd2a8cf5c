"""Counts of a process, read from `/metrics` as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness, entry, run_of
from tests.integration.service.test_life_of_a_job import message, start, stop

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


async def read(harness: Harness) -> Samples:
    answer = await harness.client.get("/metrics")
    assert answer.status_code == 200
    families = list(text_string_to_metric_families(answer.text))
    names = [one.name for one in families]
    assert len(names) == len(set(names)), "one family of each name"
    assert all(one.documentation for one in families)
    return {
        (one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, frozenset(labels.items())), 0.0)


async def test_rounds_waits_commands_and_requests(harness: Harness) -> None:
    before = await read(harness)
    assert value(before, "headway_queue_wait_seconds_count", project="default") == 0
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    assert run.generation == 1
    after = await read(harness)
    assert value(after, "headway_queue_wait_seconds_count", project="default") == 1
    assert value(after, "headway_command_ack_latency_seconds_count", kind="run") == 1
    assert value(after, "headway_scheduling_cycle_duration_seconds_count") == 1
    assert value(after, "headway_scheduling_cycle_gap_ratio_count") == 1
    assert value(after, "headway_solver_status_total", status="optimal") == 1
    request = {"method": "POST", "route": "/api/v1/jobs", "status": "2xx"}
    assert value(after, "headway_http_request_duration_seconds_count", **request) == 1
    request = {"method": "POST", "route": "/api/v1/agents/{node_id}/reports", "status": "2xx"}
    assert value(after, "headway_http_request_duration_seconds_count", **request) == 1
    await harness.client.get("/api/v1/jobs/no-such-job")
    await harness.client.get("/nobody/knows/this")
    later = await read(harness)
    request = {"method": "GET", "route": "/api/v1/jobs/{job}", "status": "4xx"}
    assert value(later, "headway_http_request_duration_seconds_count", **request) == 1
    assert not any("no-such-job" in text or "nobody" in text for _, labels in later for _, text in labels)
    assert value(later, "process_resident_memory_bytes") > 0


async def test_a_resize_by_a_restart_counts_with_its_pause(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit(elastic={"min": 1, "max": 2})
    await harness.post("jobs/job/resize", {"slots": 1})
    run = await start(harness, agent)
    await agent.report(entry("rank_message", run, **message("first_step", 1, samples=32)))
    samples = await read(harness)
    assert value(samples, "headway_resize_duration_seconds_count", how="restart", phase="pause") == 0
    await harness.post("jobs/job/resize", {"slots": 2})
    await harness.turn()
    await agent.commands()
    await stop(agent, run)
    await harness.turn()
    again = run_of(await agent.commands())
    await agent.report(
        entry("ranks_started", again, how="zygote"),
        entry("rank_message", again, **message("first_step", again.generation, samples=64)),
    )
    samples = await read(harness)
    assert value(samples, "headway_resizes_total", direction="grow", how="restart") == 1
    assert value(samples, "headway_resize_duration_seconds_count", how="restart", phase="pause") == 1
    assert value(samples, "headway_queue_wait_seconds_count", project="default") == 1


async def test_a_resize_in_place_counts_with_its_phases(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(alpha=2)
    await cast.begin(1)
    await cast.resize(2)
    await cast.ready((2, 1))
    await cast.switch(2)
    samples = await read(harness)
    assert value(samples, "headway_resizes_total", direction="grow", how="live") == 1
    name = "headway_resize_duration_seconds"
    assert value(samples, f"{name}_count", how="live", phase="prepare") == 1
    assert value(samples, f"{name}_sum", how="live", phase="pause") == 0.04
    buckets = [
        (float(dict(labels)["le"]), count)
        for (sample, labels), count in samples.items()
        if sample == f"{name}_bucket" and {("how", "live"), ("phase", "pause")} <= labels
    ]
    assert all(low <= high for (_, low), (_, high) in pairwise(sorted(buckets)))
