"""Names and process ids by which a host's ranks are recognised."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.agent.stub import StubService

WAITS = """
import os, threading
print("pid", os.getpid(), flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize(("how", "env"), [("zygote", {}), ("spawn", {"PYTHONHASHSEED": "0"})])
def test_a_rank_is_recognised_by_its_process_id_and_its_name(
    shared: StubService, how: str, env: dict[str, str]
) -> None:
    bundle = shared.add_bundle({"train.py": WAITS})
    job = f"recognised-{how}"
    shared.run(job, "python train.py", ranks=2, bundle=bundle, env=env)
    started = shared.started(job)
    printed = [int(shared.wait_log(job, "pid", rank).split("pid ")[1].split()[0]) for rank in (0, 1)]
    assert (started.how, started.pids) == (how, dict(enumerate(printed)))
    for rank, pid in started.pids.items():
        assert Path(f"/proc/{pid}/comm").read_text() == f"hw:recognised:{rank}\n"
    if how == "zygote":
        shown = Path(f"/proc/{printed[1]}/cmdline").read_bytes()
        assert shown.startswith(f"hw:{job}:1 python train.py\0".encode())
    shared.send_stop(job, mode="kill")
    shared.exits(job)
