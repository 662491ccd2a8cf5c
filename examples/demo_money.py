"""Demonstration of rented machines under a budget, on this machine, in a few minutes.

    make demo-money

PostgreSQL, Redis and the service run without any agent at first. The service rents machines for a stream of jobs. They are
processes of this machine that are launched, billed and taken away like those of a cloud. Two budgets limit the dollars per
hour and per day. One spot machine is taken away with a notice, one without. At the end, a bill shows the useful and the lost
time of every lease, followed by all checks with their results. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from examples import digits
from examples.stage import EXAMPLES, Stage, arguments_of, leave, perform, table
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES, JobState, JobView
from headway.contract.views.machines import MachineView
from headway.contract.views.money import BudgetKind, BudgetRequest, GroupBy, Period
from headway.local.guard import Guard
from headway.local.rented import machine_folders
from headway.local.stack import LocalStack

OFFERS = {
    "instance_type": "small",
    "slots": 1,
    "on_demand_usd_per_h": 0.40,
    "spot_usd_per_h": 0.12,
    "spot_capacity": 3,
    "launch_delay_s": 1,
    "min_billed_s": 0,
}
USD_PER_H, USD_PER_DAY = 0.40, 0.10
NOTICE_S = 120.0
"""Length of the notice, the same as at EC2."""
LOST_SAMPLES = 2000
"""Samples since the last checkpoint that are lost with the machine that goes without a notice."""
PATIENCE_S = 180.0
LIMIT_S = 600.0
SETTINGS = {"HEADWAY_RENT_EVERY_S": "1", "HEADWAY_IDLE_S": "35", "HEADWAY_MAX_MACHINES": "4"}


@dataclass(kw_only=True)
class Demo(Stage):
    """State of this demonstration.

    `epoch_s` is the duration of an epoch on this machine. `most_usd_per_h` is the highest total cost of all machines so far.
    """

    stack: LocalStack
    offers: Path
    epoch_s: float
    interruptions: list[dict[str, Any]] = field(default_factory=list)
    most_usd_per_h: float = 0.0

    def machines(self) -> list[MachineView]:
        """Return the machines that are paid for now, and record their total cost."""
        found = [one for one in self.client.machines(open_only=True) if one.state != "wanted"]
        self.most_usd_per_h = max(self.most_usd_per_h, sum(one.usd_per_h for one in found))
        return found

    def until(self, what: str, condition: Callable[[], bool], patience_s: float | None = None) -> float:
        def watched() -> bool:
            self.machines()
            return condition()

        return super().until(what, watched, patience_s)

    def submit(self, name: str, lasting_s: float, *, most: int) -> None:
        """Submit a job of about `lasting_s` seconds on one slot."""
        epochs = max(1, round(lasting_s / self.epoch_s))
        body = yaml.safe_load((EXAMPLES / "digits.yaml").read_text())
        changes = {
            "name": name,
            "run": f"python digits.py --epochs {epochs}",
            "workdir": None,
            "bundle": self.client.upload_bundle(EXAMPLES).digest,
            "elastic": {"min": 1, "max": most},
            "market": "spot",
            "goal": {"objective": "time"},
            "checkpoint": {"every": "10s"},
        }
        job = self.client.submit(JobSpec.model_validate({**body, **changes}))
        self.jobs[name] = job.id
        self.say(f"submitted [bold]{name}[/], for up to {most} slots on spot machines")

    def machines_of(self, name: str) -> list[MachineView]:
        nodes = self.job(name).allocation
        return [one for one in self.machines() if one.node in nodes and one.state == "running"]

    def take_away(self, machine: MachineView, notice_s: float) -> None:
        """Take a spot machine away, as a cloud does."""
        self.interruptions.append({"machine": machine.external_id, "notice_s": notice_s})
        write_offers(self.offers, self.interruptions)
        how = f"with a notice of {notice_s:.0f} s" if notice_s else "without a notice"
        self.say(f"taking machine [bold]{machine.node}[/] away {how}")

    def machine(self, machine_id: str) -> MachineView:
        return next(one for one in self.client.machines() if one.id == machine_id)


def write_offers(path: Path, interruptions: list[dict[str, Any]]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(yaml.safe_dump({"offers": [OFFERS], "interruptions": interruptions}))
    temporary.replace(path)


def measured_epoch_s() -> float:
    """Return the seconds of an epoch of `digits.py` on one core, from which the lengths of the jobs follow."""
    torch.set_num_threads(1)
    data, _ = digits.load_data()
    model = digits.build_model(32)
    optimizer = torch.optim.AdamW(model.parameters())
    began = time.monotonic()
    for images, labels in DataLoader(data, batch_size=64):
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.monotonic() - began


def play(demo: Demo) -> None:
    """Run the steps of the demonstration."""
    hourly = BudgetRequest(kind=BudgetKind.HOURLY_CAP, usd=USD_PER_H, hard=True)
    demo.client.set_budget("hourly", hourly)
    demo.client.set_budget("daily", BudgetRequest(usd=USD_PER_DAY, period=Period.DAY, hard=True))
    demo.say(
        f"budgets: ${USD_PER_H:.2f} an hour at every moment, ${USD_PER_DAY:.2f} a day; nothing is rented"
    )
    demo.submit("digits-1", 90.0, most=2)
    demo.until("a machine is rented", lambda: bool(demo.machines()))
    demo.say(f"rented a machine, {demo.machines()[0].message}")
    demo.submit("digits-2", 45.0, most=1)
    for name in ("digits-1", "digits-2"):
        demo.until(f"{name} runs", lambda name=name: demo.job(name).state is JobState.RUNNING)  # type: ignore[misc]
        demo.trains_on(name)
        demo.say(f"[bold]{name}[/] trains on {', '.join(demo.job(name).allocation)}")
    lose_without_notice(demo, "digits-2")
    demo.until("digits-1 grows", lambda: len(demo.machines_of("digits-1")) == 2)
    demo.say("[bold]digits-1[/] has grown to a second machine")
    demo.trains_on("digits-1")
    lose_with_notice(demo, "digits-1")
    demo.submit("digits-3", 5.0, most=1)
    demo.say("letting the jobs finish")
    demo.until(
        "all jobs finish",
        lambda: all(demo.job(name).state in TERMINAL_STATES for name in demo.jobs),
        LIMIT_S,
    )
    demo.say("all jobs have finished; idle machines go back")
    demo.until("all machines are given back", lambda: not demo.machines())
    demo.until(
        "the ledger is complete",
        lambda: all(abs(one.paid_s - one.charged_s) < 1e-3 for one in demo.client.machine_bills()),
    )


def lose_with_notice(demo: Demo, name: str) -> None:
    machine = demo.machines_of(name)[-1]
    before = len(demo.events(name, "switch"))
    demo.take_away(machine, NOTICE_S)
    demo.until(f"{name} gets the notice", lambda: bool(demo.events(name, "interruption")))
    demo.say(f"[bold]{name}[/]: {demo.events(name, 'interruption')[0].message}")
    demo.until(f"{name} leaves the machine", lambda: machine.node not in demo.job(name).allocation)
    demo.until(f"the members of {name} have changed", lambda: len(demo.events(name, "switch")) > before)
    left = demo.events(name, "switch")[before]
    demo.say(f"[bold]{name}[/] {left.message}")
    demo.until("the machine is gone", lambda: demo.machine(machine.id).state == "gone")
    demo.check(
        f"with a notice: {name} left the machine live, and repeated no step ({left.data['lost_steps']})",
        kept=left.data["lost_steps"] == 0 and left.data["how"] == "live",
    )
    gone = demo.machine(machine.id)
    demo.check(f"its lease ended as {gone.reason}", kept=gone.reason == "SPOT_RECLAIMED")


def lose_without_notice(demo: Demo, name: str) -> None:
    demo.until(f"{name} has trained beyond a checkpoint", lambda: _past_checkpoint(demo.job(name)))
    (machine,) = demo.machines_of(name)
    demo.take_away(machine, 0.0)
    demo.until("the machine is gone", lambda: demo.machine(machine.id).state == "gone")
    demo.until(
        f"{name} continues elsewhere",
        lambda: demo.job(name).state in {JobState.RUNNING, *TERMINAL_STATES} and demo.job(name).attempt > 1,
    )
    demo.say(f"[bold]{name}[/] continues from its last checkpoint, on {', '.join(demo.job(name).allocation)}")
    gone = demo.machine(machine.id)
    demo.check(
        f"without a notice: {name} continued elsewhere, and the lease ended as {gone.reason}",
        kept=gone.reason == "SPOT_RECLAIMED",
    )


def _past_checkpoint(job: JobView) -> bool:
    done = job.progress
    return bool(done.checkpoint_samples) and done.samples - (done.checkpoint_samples or 0) > LOST_SAMPLES


def judge(demo: Demo) -> None:
    """Check the results."""
    for name in demo.jobs:
        job = demo.job(name)
        done = job.progress
        demo.check(
            f"{name} succeeded, every sample of every epoch trained exactly once",
            kept=job.state is JobState.SUCCEEDED and done.epochs_exact == done.epochs_audited > 0,
        )
    total = demo.client.usage(by=GroupBy.CATEGORY).total
    demo.check(
        f"never more than ${USD_PER_H:.2f} an hour (${demo.most_usd_per_h:.2f} at most)",
        kept=demo.most_usd_per_h <= USD_PER_H + 1e-9,
    )
    demo.check(f"within ${USD_PER_DAY:.2f} a day (${total.usd:.4f})", kept=0 < total.usd <= USD_PER_DAY)
    demo.check("the bill shows the lost time", kept=total.lost_usd > 0)
    _judge_leases(demo, total.usd)
    took = time.monotonic() - demo.began_s
    demo.check(f"all of it in {LIMIT_S / 60:.0f} minutes ({took:.0f} s)", kept=took < LIMIT_S)


def _judge_leases(demo: Demo, usd: float) -> None:
    """Compare the bill with the provider's own records of its machines."""
    theirs = {}
    for folder in machine_folders(demo.stack.machines.folder):
        lease, ended = folder.lease, folder.ended()
        assert lease is not None
        theirs[lease.machine_id] = None if ended is None else (lease.billed_from, ended[0].isoformat())
    demo.check("every machine was given back", kept=None not in theirs.values())
    ours = {
        one.id: (one.billed_from.isoformat(), one.billed_to.isoformat())
        for one in demo.client.machines()
        if one.billed_from is not None and one.billed_to is not None
    }
    demo.check(
        f"each of {len(theirs)} machines has one lease, with the provider's exact times", kept=ours == theirs
    )
    paid = sum(one.usd for one in demo.client.machine_bills())
    demo.check(f"the bill adds up to the leases (${paid:.4f})", kept=abs(paid - usd) < 1e-6)


def show(demo: Demo) -> None:
    """Print the bill, and the results of the checks."""
    machines = table("Machines", "machine", "market", "billed", "cost", "reason of the end")
    for machine in reversed(list(demo.client.machines())):
        machines.add_row(
            machine.node or machine.id,
            machine.market,
            f"{machine.billed_s:.1f} s",
            f"${machine.cost_usd:.5f}",
            f"{machine.reason}: {machine.message}",
        )
    bill = table("The bill", "job", "useful", "starting, resizing", "lost", "idle", "dollars")
    by_job = demo.client.usage(by=GroupBy.JOB)
    for group in (*by_job.groups, None):
        one = by_job.total if group is None else group
        label = "all" if group is None else group.label or "nobody"
        parts = (one.useful_usd, one.resize_usd, one.lost_usd, one.idle_usd, one.usd)
        bill.add_row(label, *(f"${part:.5f}" for part in parts), end_section=group is by_job.groups[-1])
    demo.console.print()
    demo.console.print(machines)
    demo.console.print(bill)
    demo.show_promises()


def main() -> int:
    arguments = arguments_of(__doc__).parse_args()
    console = Console(width=120, highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="headway-money-"))
    offers = folder / "offers.yaml"
    write_offers(offers, [])
    began = time.monotonic()

    epoch_s = measured_epoch_s()

    def act() -> bool:
        console.print("[bold]Headway[/]: starting PostgreSQL, Redis and the service, without any machine")
        stack = LocalStack(folder / "data", agents=0, rent=offers, settings=SETTINGS)
        with Guard() as guard, stack, stack.client() as client:
            guard.watch(folder)
            demo = Demo(
                client=client,
                console=console,
                began_s=began,
                patience_s=PATIENCE_S,
                stack=stack,
                offers=offers,
                epoch_s=epoch_s,
            )
            demo.say(f"ready at {stack.url}")
            play(demo)
            judge(demo)
            show(demo)
            return demo.kept

    return leave(console, folder, kept=perform(console, act), keep_data=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
