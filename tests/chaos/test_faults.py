"""The fault run for a minute: whatever breaks, the promises hold. At length by hand: docs/reliability.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faulting.plan import Kind
from benchmarks.faulting.run import Order
from benchmarks.faulting.verdict import PROMISES
from benchmarks.faults import fault_run

pytestmark = pytest.mark.slow

SEED = 11
FAULTS = 15


@pytest.mark.timeout(900)  # under three minutes on two idle cores; a busy machine takes its time
def test_nothing_is_lost(tmp_path: Path) -> None:
    order = Order(seed=SEED, minutes=1.0, faults=FAULTS, jobs=2, epochs=40)
    result = fault_run(order, keep=tmp_path / "kept")
    assert result["findings"] == []
    assert {promise: result[promise] for promise in PROMISES} == dict.fromkeys(PROMISES, 0)
    assert result["settled_s"] is not None, "every job has ended, and every node takes jobs"
    assert result["faults"] > FAULTS / 2, "most faults found somebody to hurt"
    submitted = order.first_jobs + order.jobs + result["faults_by_kind"].get(Kind.KILL_ANSWERING, 0)
    assert result["jobs"] == result["acknowledged"] == submitted
