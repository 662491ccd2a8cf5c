"""The notice of a stop, which a script without the library reads from its control folder."""

from __future__ import annotations

from headway.contract.changes import ChangeKind, ChangeReason, stop_from_json
from tests.integration.agent.stub import StubService

READ_ON_SIGTERM = """
import os, pathlib, signal, sys
def stop(*_):
    print("notice", pathlib.Path(os.environ["HEADWAY_CONTROL"], "stop.json").read_text(), flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_script_reads_kind_reason_and_deadline_of_its_stop(shared: StubService) -> None:
    why = ChangeReason(ChangeKind.DRAIN, "node-1 is draining")
    shared.run("noticed", "python train.py", bundle=shared.add_bundle({"train.py": READ_ON_SIGTERM}))
    shared.wait_log("noticed", "ready")
    shared.send_stop("noticed", grace_s=20.0, why=why)
    (end,) = shared.exits("noticed").values()
    assert end.exit_code == 143
    log = shared.wait_log("noticed", "notice")
    notice = stop_from_json(
        next(line for line in log.splitlines() if "notice" in line).partition("notice ")[2]
    )
    assert notice.why == why
    assert notice.kill_at_s is not None
    assert 0 < notice.grace_s <= 20.0
