"""The whole of Headway on this machine, in a few minutes.

    make demo

Real PostgreSQL, Redis, service and two agents with two slots each share this machine. Three real
training jobs run while one is grown, one is shrunk, one loses a rank to SIGKILL, one is paused and
resumed, and a node is drained. At the end a table says what happened to each, and whether every promise
was kept: the exit code is 1 if one was not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from headway.client import Client
from headway.contract.agents import NodeState
from headway.contract.jobs import TERMINAL_STATES, EventView, JobState, JobView
from headway.contract.spec import JobSpec
from headway.local.stack import LocalStack

EXAMPLES = Path(__file__).parent
DIGITS_EPOCHS, GPT_EPOCHS, PLAIN_STEPS = 60, 2, 4000
PATIENCE_S = 120.0
LIMIT_S = 300.0


class BrokenPromise(Exception):
    """Something did not happen as promised."""


@dataclass
class Demo:
    """What the steps share. `checks` are promises with whether they were kept."""

    client: Client
    data: Path
    console: Console
    began_s: float
    jobs: dict[str, str] = field(default_factory=dict)
    checks: list[tuple[str, bool]] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began_s:6.1f} s[/]  {text}")

    def check(self, promise: str, *, kept: bool) -> None:
        self.checks.append((promise, kept))

    def job(self, name: str) -> JobView:
        return self.client.job(self.jobs[name])

    def until(self, what: str, condition: Callable[[], bool]) -> float:
        """Wait until the condition holds; how long it took, in seconds."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > PATIENCE_S:
                raise BrokenPromise(f"waited {PATIENCE_S:.0f} s in vain: {what}")
            for name in self.jobs:
                if (job := self.job(name)).state is JobState.FAILED:
                    raise BrokenPromise(f"{name} failed: {job.message}")
            time.sleep(0.1)
        return time.monotonic() - began

    def submit(self, name: str, run: str, *, size: int) -> None:
        body = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
        bundle = self.client.upload_bundle(EXAMPLES)
        spec = JobSpec.model_validate({**body, "run": run, "workdir": None, "bundle": bundle.digest})
        job = self.client.submit(spec)
        self.client.resize(job.id, size)
        self.jobs[name.replace("_", "-")] = job.id
        self.say(f"submitted [bold]{job.name}[/]: {run}")

    def runs_at(self, name: str, size: int, generation: int) -> bool:
        job = self.job(name)
        return job.state is JobState.RUNNING and job.size == size and job.generation > generation

    def trains(self, name: str, beyond: int) -> bool:
        return self.job(name).progress.samples > beyond

    def resize(self, name: str, size: int) -> None:
        before = self.job(name)
        self.client.resize(before.id, size)
        took = self.until(f"{name} runs on {size} slots", lambda: self.runs_at(name, size, before.generation))
        self.say(f"resized [bold]{name}[/] from {before.size} to {size}: running again after {took:.1f} s")

    def kill_a_rank(self, name: str) -> None:
        before = self.job(name)
        pid_file = next(
            self.data.glob(f"agents/*/runs/{before.id}/{before.generation}/rank-{before.size - 1}.pid")
        )
        pid = _pid_in(pid_file)
        os.kill(pid, signal.SIGKILL)
        self.say(f"killed rank {before.size - 1} of [bold]{name}[/] (process {pid}) with SIGKILL")
        took = self.until(f"{name} recovers", lambda: self.runs_at(name, before.size, before.generation))
        self.say(f"[bold]{name}[/] runs again after {took:.1f} s: {_last(self, name, 'recover').message}")

    def pause_and_resume(self, name: str) -> None:
        self.client.pause(self.jobs[name])
        self.until(f"{name} pauses", lambda: self.job(name).state is JobState.PAUSED)
        paused = self.job(name)
        self.say(f"paused [bold]{name}[/] at {paused.progress.samples} samples; it holds no slot now")
        self.client.resume(self.jobs[name])
        self.until(f"{name} goes on", lambda: self.runs_at(name, paused.pinned_size or 1, paused.generation))
        self.until(f"{name} trains on", lambda: self.trains(name, paused.progress.samples))
        self.say(f"resumed [bold]{name}[/]; it goes on from there")

    def drain(self, node: str) -> None:
        self.client.drain(node)
        took = self.until(
            f"{node} is empty",
            lambda: any(one.name == node and one.state is NodeState.DRAINED for one in self.client.nodes()),
        )
        self.say(f"drained node [bold]{node}[/]: empty after {took:.1f} s, its jobs went elsewhere")


def _pid_in(file: Path) -> int:
    content = json.loads(file.read_text())
    return int(content["pid"] if isinstance(content, dict) else content)


def _events(demo: Demo, name: str) -> list[EventView]:
    return list(demo.client.events(demo.jobs[name]))


def _last(demo: Demo, name: str, kind: str) -> EventView:
    return next(event for event in reversed(_events(demo, name)) if event.kind == kind)


def play(demo: Demo) -> None:
    """The script."""
    demo.submit("digits", f"python digits.py --epochs {DIGITS_EPOCHS}", size=1)
    demo.submit("gpt_char", f"python gpt_char.py --epochs {GPT_EPOCHS}", size=2)
    demo.submit("plain_ddp", f"python plain_ddp.py --steps {PLAIN_STEPS}", size=1)
    for name in ("digits", "gpt-char"):
        demo.until(f"{name} trains", lambda name=name: demo.trains(name, 0))
        demo.say(f"[bold]{name}[/] trains")
    demo.until("plain-ddp runs", lambda: demo.job("plain-ddp").state is JobState.RUNNING)
    demo.resize("gpt-char", 1)
    demo.resize("digits", 2)
    demo.until(
        "digits trains beyond its checkpoint",
        lambda: demo.trains("digits", (demo.job("digits").progress.checkpoint_samples or 10**9) + 2000),
    )
    demo.kill_a_rank("digits")
    demo.pause_and_resume("gpt-char")
    demo.drain("local-2")
    demo.say("letting the jobs finish on one node")
    demo.client.resize(demo.jobs["digits"], 1)
    demo.until("all jobs finish", lambda: all(demo.job(name).state in TERMINAL_STATES for name in demo.jobs))


def judge(demo: Demo) -> None:
    """Check the promises."""
    digits, gpt, plain = (demo.job(name) for name in ("digits", "gpt-char", "plain-ddp"))
    for job in (digits, gpt, plain):
        demo.check(f"{job.name} succeeded", kept=job.state is JobState.SUCCEEDED)
    for job, epochs in ((digits, DIGITS_EPOCHS), (gpt, GPT_EPOCHS)):
        done = job.progress
        demo.check(
            f"{job.name}: every sample of {epochs} epochs was trained exactly once",
            kept=done.epochs_exact == done.epochs_audited == epochs and done.samples == done.total_samples,
        )
    accuracy = digits.progress.metrics.get("accuracy", 0.0)
    loss = gpt.progress.metrics.get("loss", 9.9)
    demo.check(
        f"digits: at least 97 % of unseen digits are read correctly ({accuracy:.1%})", kept=accuracy >= 0.97
    )
    demo.check(f"gpt-char: the loss is under 2.0 nats per character ({loss:.2f})", kept=loss < 2.0)
    demo.check("digits grew, gpt-char shrank", kept=_grew(demo, "digits") and _shrank(demo, "gpt-char"))
    free = all(slot.job_id is None for node in demo.client.nodes() for slot in node.slots)
    demo.check("every slot is free again", kept=free)
    took = time.monotonic() - demo.began_s
    demo.check(f"all of it in under five minutes ({took:.0f} s)", kept=took < LIMIT_S)


def _sizes(demo: Demo, name: str) -> list[int]:
    return [int(event.data["slots"]) for event in _events(demo, name) if event.kind == "allocate"]


def _grew(demo: Demo, name: str) -> bool:
    sizes = _sizes(demo, name)
    return any(after > before for before, after in itertools.pairwise(sizes))


def _shrank(demo: Demo, name: str) -> bool:
    sizes = _sizes(demo, name)
    return any(after < before for before, after in itertools.pairwise(sizes))


def show(demo: Demo) -> None:
    """The table of what happened, and the promises."""
    table = Table(title="What happened", title_style="bold", title_justify="left")
    for column in ("job", "state", "sizes over time", "samples", "exact epochs", "redone", "result"):
        table.add_column(column)
    for name in demo.jobs:
        job, done = demo.job(name), demo.job(name).progress
        result = ", ".join(f"{key} {value:.3f}" for key, value in sorted(done.metrics.items()))
        table.add_row(
            name,
            job.state,
            " → ".join(map(str, _sizes(demo, name))),
            f"{done.samples:,}" if done.samples else "not measured",
            f"{done.epochs_exact} of {done.epochs_audited}" if done.epochs_audited else "not measured",
            f"{done.lost_samples:,}" if done.samples else "not measured",
            result or "see its log",
        )
    demo.console.print()
    demo.console.print(table)
    for promise, kept in demo.checks:
        demo.console.print(f"{'[green]kept  [/]' if kept else '[red]BROKEN[/]'}  {promise}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", type=Path, help="save what is printed as an SVG")
    parser.add_argument("--keep", action="store_true", help="keep the data folder, with all logs")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `with` stops what was started
    console = Console(record=True, width=110, highlight=False)
    data = Path(tempfile.mkdtemp(prefix="headway-demo-"))
    began = time.monotonic()
    broken = True
    try:
        console.print(
            "[bold]Headway[/]: starting PostgreSQL, Redis, the service and two agents with two slots each"
        )
        with LocalStack(data, agents=2, slots=2) as stack, stack.client() as client:
            demo = Demo(client, data, console, began)
            demo.say(f"ready at {stack.url}")
            play(demo)
            judge(demo)
            show(demo)
            broken = not all(kept for _, kept in demo.checks)
    except BrokenPromise as error:
        console.print(f"[red]BROKEN[/]  {error}")
    if arguments.picture is not None:
        svg = console.export_svg(title="make demo")
        # The reader's own fonts will do: a picture must not fetch anything.
        arguments.picture.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))
    if broken or arguments.keep:
        console.print(f"Data and logs are in {data}")
    else:
        shutil.rmtree(data, ignore_errors=True)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
