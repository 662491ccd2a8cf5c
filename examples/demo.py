"""Demonstration of Headway on this machine, in a minute.

    make demo

PostgreSQL, Redis, the service and two agents with three slots each share this machine. Four training jobs run. One job
shrinks, and is paused and resumed. Another one grows, loses a rank to SIGKILL, gets it back, and moves to another node
when its node is drained. A third one, whose model is sharded (FSDP2) with a copy of each part, loses a rank, too. At the end,
tables show the events and pauses of each job, and all checks with their results. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console

from examples.stage import EXAMPLES, BrokenPromise, Stage, arguments_of, leave, perform, table
from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, EventView, JobState, JobView
from headway.local.guard import Guard
from headway.local.stack import LocalStack

DIGITS_EPOCHS, GPT_EPOCHS, FSDP_EPOCHS, PLAIN_STEPS = 200, 2, 2, 1500
FSDP_CHARACTERS = 150_000
PATIENCE_S = 120.0
FINISH_S = 900.0
"""Seconds for the rest of the training, which takes long on a busy machine."""
LONGEST_PAUSE_S = 1.0
"""Limit for the pause of a live change, which takes hundredths of a second on an idle machine. Here four jobs use all cores."""
LIMIT_S = 300.0


@dataclass(kw_only=True)
class Demo(Stage):
    """State of this demonstration. `data` is the folder of the stack."""

    data: Path

    def changes(self, name: str) -> list[EventView]:
        """Return the changes of a job's members that needed no restart."""
        return self.events(name, "switch")

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

    def next_switch(self, name: str, act: Callable[[], object]) -> EventView:
        """Call `act`, wait for the next change of members, and return it."""
        before = len(self.changes(name))
        act()

        def changed() -> bool:
            if self.job(name).state in TERMINAL_STATES:
                raise BrokenPromise(f"{name} was over before its members changed; give it more epochs")
            return len(self.changes(name)) > before

        self.until(f"the members of {name} change", changed)
        return self.changes(name)[before]

    def resize(self, name: str, size: int) -> None:
        event = self.next_switch(name, lambda: self.client.resize(self.jobs[name], size))
        self.say(f"[bold]{name}[/] {event.message}{_preparation(event)}")

    def kill_a_rank(self, name: str) -> None:
        self.trains_on(name)
        pid = _newest_rank(self.data, self.jobs[name])
        self.say(f"killing a rank of [bold]{name}[/] (process {pid}) with SIGKILL")
        lost = self.next_switch(name, lambda: os.kill(pid, signal.SIGKILL)).data
        self.say(
            f"[bold]{name}[/] lost a rank: paused {lost['pause_s']:.2f} s, {_steps(lost['lost_steps'])} repeated, "
            f"no checkpoint read; size {lost['to']}"
        )
        grown = self.next_switch(name, lambda: None)
        self.say(f"[bold]{name}[/] {grown.message}{_preparation(grown)}")

    def pause_and_resume(self, name: str) -> None:
        self.client.pause(self.jobs[name])
        self.until(f"{name} pauses", lambda: self.job(name).state is JobState.PAUSED)
        paused = self.job(name)
        self.say(f"paused [bold]{name}[/] at {paused.progress.samples:,} samples; it holds no slot now")
        self.client.resume(self.jobs[name])
        self.until(
            f"{name} continues", lambda: self.runs_at(name, paused.pinned_size or 1, paused.generation)
        )
        self.trains_on(name)
        self.say(f"resumed [bold]{name}[/]; it continues from there")

    def drain(self, name: str) -> None:
        """Drain the node of a job, so that the whole job has to move."""
        (node,) = self.job(name).allocation
        moved = self.next_switch(name, lambda: self.client.drain(node))
        self.say(f"draining node [bold]{node}[/]: [bold]{name}[/] {moved.message}")
        self.until(
            f"{node} is empty",
            lambda: any(one.name == node and one.state is NodeState.DRAINED for one in self.client.nodes()),
        )
        self.say(f"node [bold]{node}[/] is empty")


def _preparation(event: EventView) -> str:
    """Return a note on the start of new ranks, or an empty text if there were none."""
    if not event.data["ready_s"]:
        return ""
    return f" (trained on for {event.data['prepare_s']:.1f} s meanwhile)"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _newest_rank(data: Path, job_id: str) -> int:
    """Return the process id of the newest running rank of a job."""
    files = [
        file
        for file in data.glob(f"agents/*/runs/{job_id}/*/rank-*.pid")
        if not file.with_suffix(".exit").exists()
    ]
    newest = max(files, key=lambda file: (int(file.parent.name), file.name))
    return int(json.loads(newest.read_text())["pid"])


def play(demo: Demo) -> None:
    """Run the steps of the demonstration."""
    demo.submit("digits", f"python digits.py --epochs {DIGITS_EPOCHS}", size=1)
    demo.submit("gpt_char", f"python gpt_char.py --epochs {GPT_EPOCHS}", size=2)
    demo.submit(
        "gpt_fsdp", f"python gpt_fsdp.py --epochs {FSDP_EPOCHS} --characters {FSDP_CHARACTERS}", size=2
    )
    demo.submit("plain_ddp", f"python plain_ddp.py --steps {PLAIN_STEPS}", size=1)
    for name in ("digits", "gpt-char", "gpt-fsdp"):
        demo.trains_on(name)
        demo.say(f"[bold]{name}[/] trains")
    demo.until("plain-ddp runs", lambda: demo.job("plain-ddp").state is not JobState.STARTING)
    demo.kill_a_rank("gpt-fsdp")
    demo.resize("gpt-char", 1)
    demo.resize("digits", 2)
    demo.kill_a_rank("digits")
    demo.resize("digits", 1)
    demo.pause_and_resume("gpt-char")
    for name in ("plain-ddp", "gpt-fsdp"):
        demo.until(f"{name} finishes", lambda name=name: demo.job(name).state in TERMINAL_STATES)  # type: ignore[misc]
    demo.drain("digits")
    shares = (f"{name} has {_share(demo.job(name)):.0%} done" for name in ("digits", "gpt-char"))
    demo.say(f"letting the jobs finish on one node: {', '.join(shares)}")
    demo.until(
        "all jobs finish",
        lambda: all(demo.job(name).state in TERMINAL_STATES for name in demo.jobs),
        FINISH_S,
    )


def _share(job: JobView) -> float:
    return job.progress.samples / (job.progress.total_samples or 1)


def judge(demo: Demo) -> None:
    """Check the results."""
    digits, gpt, fsdp, plain = (demo.job(name) for name in ("digits", "gpt-char", "gpt-fsdp", "plain-ddp"))
    for job in (digits, gpt, fsdp, plain):
        demo.check(f"{job.name} succeeded", kept=job.state is JobState.SUCCEEDED)
    for job, epochs in ((digits, DIGITS_EPOCHS), (gpt, GPT_EPOCHS), (fsdp, FSDP_EPOCHS)):
        done = job.progress
        demo.check(
            f"{job.name}: every sample of {epochs} epochs was trained exactly once",
            kept=done.epochs_exact == done.epochs_audited == epochs and done.samples == done.total_samples,
        )
    accuracy = digits.progress.metrics.get("accuracy", 0.0)
    loss = gpt.progress.metrics.get("loss", 9.9)
    demo.check(
        f"digits: at least 97 % of unseen digits are recognised ({accuracy:.1%})", kept=accuracy >= 0.97
    )
    demo.check(f"gpt-char: the loss is under 2.0 nats per character ({loss:.2f})", kept=loss < 2.0)
    _judge_changes(demo)
    free = all(slot.job_id is None for node in demo.client.nodes() for slot in node.slots)
    demo.check("every slot is free again", kept=free)
    took = time.monotonic() - demo.began_s
    demo.check(f"all of it in under five minutes ({took:.0f} s)", kept=took < LIMIT_S)


def _judge_changes(demo: Demo) -> None:
    digits, gpt = demo.job("digits"), demo.job("gpt-char")
    in_place = [event for name in demo.jobs for event in demo.changes(name) if event.data["how"] == "live"]
    longest_s = max(event.data["pause_s"] for event in in_place)
    demo.check("digits grew, gpt-char shrank", kept=_grew(demo, "digits") and _shrank(demo, "gpt-char"))
    demo.check(
        f"no live change paused training for {LONGEST_PAUSE_S:.0f} s or more ({longest_s:.2f} s at most)",
        kept=longest_s < LONGEST_PAUSE_S,
    )
    for job, kind in ((digits, "rank"), (demo.job("gpt-fsdp"), "rank of a sharded model")):
        demo.check(
            f"{job.name}: the killed {kind} cost at most one step ({job.progress.lost_steps}), and no checkpoint was read",
            kept=job.progress.lost_steps <= 1 and job.progress.lost_samples == 0 and job.attempt == 1,
        )
    demo.check(
        "gpt-char was restarted only after its pause",
        kept=gpt.attempt == 2 and gpt.progress.lost_samples == 0,
    )


def _sizes(demo: Demo, name: str) -> list[int]:
    events = demo.events(name, "allocate", "switch")
    return [int(event.data["slots" if event.kind == "allocate" else "to"]) for event in events]


def _grew(demo: Demo, name: str) -> bool:
    return any(event.data["to"] > event.data["from"] for event in demo.changes(name))


def _shrank(demo: Demo, name: str) -> bool:
    return any(event.data["to"] < event.data["from"] for event in demo.changes(name))


def show(demo: Demo) -> None:
    """Print the tables of jobs and pauses, and the results of the checks."""
    happened = table("Jobs", "job", "state", "sizes over time", "samples", "exact epochs", "result")
    for name in demo.jobs:
        job, done = demo.job(name), demo.job(name).progress
        result = ", ".join(f"{key} {value:.3f}" for key, value in sorted(done.metrics.items()))
        happened.add_row(
            name,
            job.state,
            " → ".join(map(str, _sizes(demo, name))),
            f"{done.samples:,}" if done.samples else "not measured",
            f"{done.epochs_exact} of {done.epochs_audited}" if done.epochs_audited else "not measured",
            result or "see its log",
        )
    pauses = table("Pauses of training", "job", "slots", "reason", "paused", "repeated", "state")
    for name in demo.jobs:
        for event, cause in zip(demo.changes(name), _causes(demo, name), strict=True):
            data = event.data
            pauses.add_row(
                name,
                f"{data['from']} → {data['to']}",
                cause,
                f"{data['pause_s']:.2f} s",
                _steps(data["lost_steps"]),
                _way_of_state(event),
            )
    demo.console.print()
    demo.console.print(happened)
    demo.console.print(pauses)
    demo.show_promises()


def _causes(demo: Demo, name: str) -> list[str]:
    """Return the reason of each change of a job's members, which is that of the event that began it."""
    causes, last = [], ""
    for event in demo.events(name, "prepare", "lose", "switch"):
        if event.kind == "switch":
            causes.append(last)
        else:
            last = str(event.reason).lower().replace("_", " ")
    return causes


def _way_of_state(event: EventView) -> str:
    if event.data["how"] == "checkpoint":
        return "by a checkpoint"
    sent = event.data["sync_bytes"]
    return f"from peers, {sent / 2**20:.1f} MiB" if sent else "stayed in memory"


def main() -> int:
    parser = arguments_of(__doc__)
    parser.add_argument("--picture", type=Path, help="save the output as an SVG")
    parser.add_argument("--device-kind", default="cpu", help="kind of the slots (default: cpu)")
    arguments = parser.parse_args()
    kind: str = arguments.device_kind
    console = Console(record=True, width=110, highlight=False)
    data = Path(tempfile.mkdtemp(prefix="headway-demo-"))
    began = time.monotonic()

    def act() -> bool:
        console.print(
            "[bold]Headway[/]: starting PostgreSQL, Redis, the service and two agents with three slots each"
        )
        with (
            Guard() as guard,
            LocalStack(data, agents=2, slots=3, device_kind=kind) as stack,
            stack.client() as client,
        ):
            guard.watch(data)
            demo = Demo(client=client, console=console, began_s=began, patience_s=PATIENCE_S, data=data)
            demo.say(f"ready at {stack.url}")
            play(demo)
            judge(demo)
            show(demo)
            return demo.kept

    kept = perform(console, act)
    if arguments.picture is not None:
        svg = console.export_svg(title="make demo")
        # Without `@font-face`, the picture uses the reader's fonts and fetches nothing.
        arguments.picture.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))
    return leave(console, data, kept=kept, keep_data=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
