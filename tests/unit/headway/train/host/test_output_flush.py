"""A leaving process writes everything that its script's files and writers still hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headway.train.host.output import flush


def test_files_that_are_open_are_complete_after_a_flush(tmp_path: Path) -> None:
    with (tmp_path / "log.txt").open("a") as log, (tmp_path / "raw").open("wb") as raw:
        log.write("line")
        raw.write(b"1")
        flush()
        assert ((tmp_path / "log.txt").read_text(), (tmp_path / "raw").read_bytes()) == ("line", b"1")


WRITES = """
import os, sys
from torch.utils.tensorboard import SummaryWriter
from headway.train.host.output import flush
writer = SummaryWriter(sys.argv[1])
for step in range(20):
    writer.add_scalar(f"loss/{step}", 1.0, step)
flush()
os._exit(0)
"""


def test_events_in_the_queue_of_a_writer_are_written_before_the_process_ends(tmp_path: Path) -> None:
    """In a process of its own, because the writer opens a socket."""
    subprocess.run([sys.executable, "-c", WRITES, str(tmp_path)], check=True, capture_output=True)
    (events,) = tmp_path.glob("events.*")
    assert b"loss/19" in events.read_bytes()


def test_writer_that_fails_keeps_no_other_file_from_being_written(tmp_path: Path) -> None:
    class SummaryWriter:
        def flush(self) -> None:
            raise RuntimeError("the connection is closed")

    broken = SummaryWriter()
    with (tmp_path / "log.txt").open("a") as log:
        log.write("line")
        flush()
        assert (tmp_path / "log.txt").read_text() == "line"
    del broken


FORKS = """
import os, sys
from headway.train.host.output import exit_actions
exit_actions.callback(lambda: print("closed by", "parent" if os.getpid() == parent else "child", flush=True))
parent = os.getpid()
if (child := os.fork()) == 0:
    sys.exit(0)
os.waitpid(child, 0)
"""


def test_forked_child_that_exits_leaves_the_exit_actions_to_its_parent() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKS], check=True, capture_output=True, text=True)
    assert ended.stdout.splitlines() == ["closed by parent"]
