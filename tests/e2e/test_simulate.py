"""`headway simulate` as a person runs it: files in, a page out, errors in a sentence, an end on Ctrl-C."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "simulation"


async def start(*arguments: str) -> asyncio.subprocess.Process:
    files = ("--jobs", str(EXAMPLE / "jobs.csv"), "--cluster", str(EXAMPLE / "cluster.yaml"))
    command = [sys.executable, "-m", "headway.cli", "simulate", *files, *arguments]
    pipe = asyncio.subprocess.PIPE
    # Whoever starts tests in the background of a shell without job control has them ignore Ctrl-C, and all that they start.
    return await asyncio.create_subprocess_exec(
        *command, stdout=pipe, stderr=pipe, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )


async def end(program: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    """Exit code, stdout, stderr."""
    printed, said = await program.communicate()
    return program.returncode, printed.decode(), said.decode()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
async def test_the_example_makes_a_report_and_its_rows(tmp_path: Path):
    out = tmp_path / "out"
    program = await start("--policy", "goodput,fifo", "--oracle", "--out", str(out))
    code, printed, said = await end(program)
    assert (code, said) == (0, "")
    assert str(out / "report.html") in printed
    assert [line.split()[0] for line in printed.splitlines()[:3]] == ["POLICY", "goodput", "fifo"]
    assert json.loads((out / "summary.json").read_text())["jobs"] == 24
    assert "goodput finished jobs soonest" in (out / "report.html").read_text()
    with (out / "jobs.csv").open(newline="") as lines:
        jobs = list(csv.DictReader(lines))
    assert len(jobs) == 48
    assert all(float(job["submit_s"]) <= float(job["start_s"]) < float(job["end_s"]) for job in jobs)


async def test_what_makes_no_sense_is_refused_in_a_sentence(tmp_path: Path):
    code, printed, said = await end(await start("--policy", "best", "--out", str(tmp_path / "out")))
    assert (code, printed) == (1, "")
    assert "no policy is called 'best'" in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
async def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path):
    program = await start("--seeds", "500", "--out", str(tmp_path / "out"))
    await until(lambda: bool(children(program.pid)), within_s=60)
    (child,) = children(program.pid)
    program.send_signal(signal.SIGINT)
    code, _, said = await end(program)
    assert (code, said.strip()) == (130, "Stopped; nothing was written.")
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not (tmp_path / "out").exists()
