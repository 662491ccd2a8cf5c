"""How ranks of a real agent come by memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.agent.stub import StubService

LARGE = """
import os, pathlib, torch
held = torch.ones(16_000_000)
lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
print("large pages", next(line.split()[1] for line in lines if line.startswith("AnonHugePages")))
print("tunables", os.environ.get("GLIBC_TUNABLES"))
"""


def _kib(log: str) -> int:
    line = next(line for line in log.splitlines() if line.startswith("large pages"))
    return int(line.split()[-1])


@pytest.mark.slow
def test_a_ranks_memory_comes_in_large_pages_and_the_rank_is_not_told_how(shared: StubService) -> None:
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("this host gives no large pages")
    bundle = shared.add_bundle({"train.py": LARGE})
    shared.run("large", "python train.py", bundle=bundle)
    log = shared.wait_log("large", "tunables")
    assert "tunables None" in log
    assert _kib(log) > 32_000, log
