"""Members that meet while one of them dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from headway.contract.orders import Order, order_to_json

SCRIPT = Path(__file__).parent / "scripts" / "meeting.py"


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_member_that_dies_before_it_connects_is_not_waited_for(victim: int) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    order = Order(generation=3, world_size=2, store=f"127.0.0.1:{store.port}", members={"1.0": 0, "3.1": 1})
    fates = {victim: "dies", 1 - victim: "goes_on"}
    members = {
        rank: subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), order_to_json(order), fate],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank, fate in fates.items()
    }
    outputs = {rank: process.communicate(timeout=280) for rank, process in members.items()}
    assert members[victim].returncode == -signal.SIGKILL, outputs[victim]
    found = json.loads(outputs[1 - victim][0])
    assert found["lost"]
    assert found["took_s"] < 300, "although collectives may take ten minutes"
