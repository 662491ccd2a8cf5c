"""Members that meet while one of them dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from headway.contract.orders import Order, order_to_json
from tests.elastic.harness import Job, codes, preloading

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


@pytest.mark.slow  # two ranks of a fork server that may be new
def test_ranks_of_a_nameless_host_write_no_warning_of_torch_to_their_log(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    counted = job("count.py", "--epochs", 1, "--result", tmp_path, MASTER_ADDR="127.0.0.2").run(2)
    assert codes(counted) == [0, 0], counted.output()
    assert "hostname of the client socket" not in counted.output()


def test_fork_server_ends_at_once_although_a_child_of_a_killed_rank_runs(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    script = tmp_path / "forking.py"
    script.write_text(
        "import os, time\nchild = os.fork()\nprint(child, flush=True) if child else None\ntime.sleep(3600)\n",
        encoding="utf-8",
    )
    running = job(script).start(1)
    running.until(lambda: running.output().endswith("\n"))
    child = int(running.output())
    running.kill()
    running.processes[0].join()
    try:
        with preloading():
            os.kill(child, 0)  # it runs
    finally:
        os.kill(child, signal.SIGKILL)
