"""A rank that prints as fast as it can costs the agent, its disk and the service no more than their share."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.contract.agents import RanksStarted
from tests.integration.agent.stub import AgentProcess, StubService
from worker_agent.logs.shipping import LAST_WORDS_BYTES, QUOTA_BYTES

FLOOD = """
import sys, time
line = ("x" * 99 + "\\n") * 640
printed, until = 0, time.monotonic() + 3
while printed < 600 << 20 and (time.monotonic() < until or printed < 130 << 20):
    print(line, end="")
    printed += len(line)
print()
print("it goes on", flush=True)
"""
MIB = 1 << 20


def cpu_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) << 10


@pytest.mark.slow
def test_a_rank_that_prints_as_fast_as_it_can(
    stub: StubService, make_agent: Callable[..., AgentProcess]
) -> None:
    agent = make_agent()
    agent.start()
    stub.wait_for(lambda: stub.reports)
    before_s, before_bytes = cpu_s(agent.pid), peak_bytes(agent.pid)
    stub.run("flood", "python train.py", bundle=stub.add_bundle({"train.py": FLOOD}))
    stub.wait_for(lambda: stub.of("flood", RanksStarted))
    log = agent.state / "runs" / "flood" / "1" / "rank-0.log"
    heard_s, disk_bytes = [time.monotonic()], [0]
    while "it goes on" not in stub.log("flood")[-200:]:
        count = len(stub.reports)
        stub.wait_for(lambda count=count: len(stub.reports) > count)  # type: ignore[misc]
        heard_s.append(time.monotonic())
        disk_bytes.append(log.stat().st_blocks * 512)
    assert stub.exits("flood")[0].exit_code == 0, "the job goes on"
    text, printed = stub.log("flood"), log.stat().st_size
    missing = sum(int(found) for found in re.findall(r"\[headway\] Truncated: (\d+) bytes are missing", text))
    assert missing > 0
    said = sum(len(line) + 1 for line in text.splitlines() if line.startswith("[headway]"))
    assert printed > 130 * MIB
    line_ends = text.count("[headway]")  # one before each notice that is put within a line
    assert 0 <= len(text) - said + missing - printed <= line_ends, "every byte is there or counted"
    assert len(text) <= QUOTA_BYTES + LAST_WORDS_BYTES + 2048
    assert max(disk_bytes) < 8 * QUOTA_BYTES, "what it writes while the agent looks elsewhere, and no more"
    assert log.stat().st_blocks * 512 < QUOTA_BYTES
    assert peak_bytes(agent.pid) - before_bytes < 64 * MIB
    assert cpu_s(agent.pid) - before_s < 10
    quiet_s = max(later - earlier for earlier, later in itertools.pairwise(heard_s))
    assert quiet_s < stub.lease_s / 2, "its heartbeats go on"
