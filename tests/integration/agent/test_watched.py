"""A real agent that somebody watches: its metrics, and its part of a job's trace."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.tracing import trace_of
from tests.collector import Collector
from tests.integration.agent.looking import wait_until
from tests.integration.agent.stub import AgentProcess, StubService

SCRIPT = """
import json, os, signal, sys
control = open(os.environ["HEADWAY_CONTROL"] + "/rank-0.jsonl", "a")
fields = {"type": "first_step", "rank": 0, "generation": 1, "at_s": 1.0, "samples": 32}
control.write(json.dumps(fields) + "\\n")
control.close()
print("trains", flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
signal.pause()
"""


def port_of(agent: AgentProcess) -> int | None:
    said = [json.loads(line) for line in agent.log().splitlines() if '"serving metrics"' in line]
    return int(said[0]["port"]) if said else None


def read(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        one.name + json.dumps(one.labels, sort_keys=True): one.value
        for family in families
        for one in family.samples
    }


@pytest.mark.slow
def test_metrics_and_spans_of_a_run(stub: StubService, make_agent: Callable[..., AgentProcess]) -> None:
    with Collector().running() as collector:
        agent = make_agent("--metrics-listen", "0")
        agent.env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        agent.start()
        stub.wait_for(lambda: stub.reports)
        command = trace_of("watched").child("command")
        bundle = stub.add_bundle({"train.py": SCRIPT})
        stub.run("watched", "python train.py", bundle=bundle, traceparent=str(command))
        stub.wait_log("watched", "trains")
        spans = collector.wait_for("start_ranks", "first_step")
        assert spans["start_ranks"].parent_id == command.span_id
        assert spans["first_step"].parent_id == spans["start_ranks"].span_id
        assert {one.trace_id for one in spans.values()} == {command.trace_id}
        port = port_of(agent)
        assert port is not None
        samples = read(port)
        assert samples["headway_agent_ranks{}"] == 1
        held = {"device_kind": "cpu", "state": "held", "health": "answers"}
        assert samples["headway_agent_slots" + json.dumps(held, sort_keys=True)] == 1
        assert samples['headway_agent_reports_total{"outcome": "accepted"}'] >= 1
        stub.send_stop("watched")
        stub.released("watched")
        wait_until(lambda: read(port)["headway_agent_ranks{}"] == 0)
        assert agent.end() == 0, "and sends what is left"
    assert "secret" not in collector.raw.decode(errors="replace")
