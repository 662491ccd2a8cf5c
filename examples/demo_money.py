"""Rented machines under a budget, on this machine, in a few minutes.

    make demo-money

Real PostgreSQL, Redis and service; nothing else at first. Machines are rented for a stream of jobs, as processes of this
machine that are launched, billed and taken away as a cloud's would be. Two budgets hold: dollars an hour, and dollars a
day. One spot machine is taken away with a notice, one without. At the end comes the bill: what was useful and what was
lost, to the second of every lease, and whether every promise was kept: the exit code is 1 if one was not.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml
from rich.console import Console
from rich.table import Table

from headway.client import Client
from headway.contract.jobs import TERMINAL_STATES, EventView, JobState, JobView
from headway.contract.machines import MachineView
from headway.contract.money import GroupBy, LeaseBill, UsageView
from headway.contract.spec import JobSpec
from headway.local.rented import machine_folders
from headway.local.stack import LocalStack

EXAMPLES = Path(__file__).parent
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
"""As long as EC2's."""
LOST_SAMPLES = 2000
"""Trained since the last checkpoint when a machine goes without a notice: so much is done again."""
PATIENCE_S = 180.0
LIMIT_S = 600.0
SETTINGS = {"HEADWAY_RENT_EVERY_S": "1", "HEADWAY_IDLE_S": "35", "HEADWAY_MAX_MACHINES": "4"}


class BrokenPromise(Exception):
    """Something did not happen as promised."""


@dataclass
class Demo:
    """What the steps share. `checks` are promises with whether they were kept; `most_usd_per_h` is the most that all
    machines together ever cost at one time.
    """

    stack: LocalStack
    client: Client
    offers: Path
    console: Console
    began_s: float
    jobs: dict[str, str] = field(default_factory=dict)
    checks: list[tuple[str, bool]] = field(default_factory=list)
    interruptions: list[dict[str, Any]] = field(default_factory=list)
    most_usd_per_h: float = 0.0

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began_s:6.1f} s[/]  {text}")

    def check(self, promise: str, *, kept: bool) -> None:
        self.checks.append((promise, kept))

    def ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.stack.token}"}
        response = httpx.request(
            method, f"{self.stack.url}/api/v1/{path}", headers=headers, timeout=PATIENCE_S, **arguments
        )
        response.raise_for_status()
        return response

    def job(self, name: str) -> JobView:
        return self.client.job(self.jobs[name])

    def events(self, name: str, *kinds: str) -> list[EventView]:
        return [event for event in self.client.events(self.jobs[name]) if event.kind in kinds]

    def machines(self) -> list[MachineView]:
        """Those that are paid for now. What they cost together is noted."""
        found = [one for one in self.client.machines(open_only=True) if one.state != "wanted"]
        self.most_usd_per_h = max(self.most_usd_per_h, sum(one.usd_per_h for one in found))
        return found

    def until(self, what: str, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > patience_s:
                raise BrokenPromise(f"waited {patience_s:.0f} s in vain: {what}")
            for name in self.jobs:
                if (job := self.job(name)).state is JobState.FAILED:
                    raise BrokenPromise(f"{name} failed: {job.message}")
            self.machines()
            time.sleep(0.2)

    def submit(self, name: str, epochs: int, *, most: int) -> None:
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

    def trains_on(self, name: str) -> None:
        samples = self.job(name).progress.samples
        self.until(f"{name} trains", lambda: self.job(name).progress.samples > samples)

    def machines_of(self, name: str) -> list[MachineView]:
        nodes = self.job(name).allocation
        return [one for one in self.machines() if one.node in nodes and one.state == "running"]

    def take_away(self, machine: MachineView, notice_s: float) -> None:
        """What a cloud does with spot machines."""
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


def play(demo: Demo) -> None:
    """The script."""
    demo.ask("PUT", "budgets/hourly", json={"kind": "hourly_cap", "usd": USD_PER_H, "hard": True})
    demo.ask("PUT", "budgets/daily", json={"usd": USD_PER_DAY, "period": "day", "hard": True})
    demo.say(
        f"budgets: ${USD_PER_H:.2f} an hour at every moment, ${USD_PER_DAY:.2f} a day; nothing is rented"
    )
    demo.submit("digits-1", 90, most=2)
    demo.until("a machine is rented", lambda: bool(demo.machines()))
    demo.say(f"rented a machine, {demo.machines()[0].message}")
    demo.submit("digits-2", 50, most=1)
    for name in ("digits-1", "digits-2"):
        demo.until(f"{name} runs", lambda name=name: demo.job(name).state is JobState.RUNNING)  # type: ignore[misc]
        demo.trains_on(name)
        demo.say(f"[bold]{name}[/] trains on {', '.join(demo.job(name).allocation)}")
    lose_without_notice(demo, "digits-2")
    demo.until("digits-1 grows", lambda: len(demo.machines_of("digits-1")) == 2)
    demo.say("[bold]digits-1[/] has grown to a second machine")
    demo.trains_on("digits-1")
    lose_with_notice(demo, "digits-1")
    demo.submit("digits-3", 10, most=1)
    demo.say("letting the jobs finish")
    demo.until(
        "all jobs finish",
        lambda: all(demo.job(name).state in TERMINAL_STATES for name in demo.jobs),
        LIMIT_S,
    )
    demo.say("all jobs have finished; idle machines go back")
    demo.until("all machines are given back", lambda: not demo.machines())
    demo.until(
        "the ledger is complete", lambda: all(abs(one.paid_s - one.charged_s) < 1e-3 for one in bills(demo))
    )


def lose_with_notice(demo: Demo, name: str) -> None:
    machine = demo.machines_of(name)[-1]
    before = len(demo.events(name, "switch"))
    demo.take_away(machine, NOTICE_S)
    demo.until(f"{name} is told", lambda: bool(demo.events(name, "interruption")))
    demo.say(f"[bold]{name}[/]: {demo.events(name, 'interruption')[0].message}")
    demo.until(f"{name} leaves the machine", lambda: machine.node not in demo.job(name).allocation)
    demo.until(f"the members of {name} have changed", lambda: len(demo.events(name, "switch")) > before)
    left = demo.events(name, "switch")[before]
    demo.say(f"[bold]{name}[/] {left.message}")
    demo.until("the machine is gone", lambda: demo.machine(machine.id).state == "gone")
    demo.check(
        f"with a notice: {name} left in place, and no step was done again ({left.data['lost_steps']})",
        kept=left.data["lost_steps"] == 0 and left.data["how"] == "live",
    )
    gone = demo.machine(machine.id)
    demo.check(f"its lease ended as {gone.reason}", kept=gone.reason == "SPOT_RECLAIMED")


def lose_without_notice(demo: Demo, name: str) -> None:
    demo.until(f"{name} has trained on since a checkpoint", lambda: _past_checkpoint(demo.job(name)))
    (machine,) = demo.machines_of(name)
    demo.take_away(machine, 0.0)
    demo.until("the machine is gone", lambda: demo.machine(machine.id).state == "gone")
    demo.until(
        f"{name} goes on elsewhere",
        lambda: demo.job(name).state in {JobState.RUNNING, *TERMINAL_STATES} and demo.job(name).attempt > 1,
    )
    demo.say(f"[bold]{name}[/] goes on from its last checkpoint, on {', '.join(demo.job(name).allocation)}")
    gone = demo.machine(machine.id)
    demo.check(
        f"without one: {name} went on elsewhere, the lease ended as {gone.reason}",
        kept=gone.reason == "SPOT_RECLAIMED",
    )


def _past_checkpoint(job: JobView) -> bool:
    done = job.progress
    return bool(done.checkpoint_samples) and done.samples - (done.checkpoint_samples or 0) > LOST_SAMPLES


def bills(demo: Demo) -> list[LeaseBill]:
    items = demo.ask("GET", "usage/machines").json()["items"]
    return [LeaseBill.model_validate(one) for one in items]


def usage(demo: Demo, by: GroupBy) -> UsageView:
    return UsageView.model_validate(demo.ask("GET", "usage", params={"group_by": by.value}).json())


def judge(demo: Demo) -> None:
    """Check the promises."""
    for name in demo.jobs:
        job = demo.job(name)
        done = job.progress
        demo.check(
            f"{name} succeeded, every sample of every epoch trained exactly once",
            kept=job.state is JobState.SUCCEEDED and done.epochs_exact == done.epochs_audited > 0,
        )
    total = usage(demo, GroupBy.CATEGORY).total
    demo.check(
        f"never more than ${USD_PER_H:.2f} an hour (${demo.most_usd_per_h:.2f} at most)",
        kept=demo.most_usd_per_h <= USD_PER_H + 1e-9,
    )
    demo.check(f"within ${USD_PER_DAY:.2f} a day (${total.usd:.4f})", kept=0 < total.usd <= USD_PER_DAY)
    demo.check("something was lost, and it is on the bill", kept=total.lost_usd > 0)
    _judge_leases(demo, total.usd)
    took = time.monotonic() - demo.began_s
    demo.check(f"all of it in {LIMIT_S / 60:.0f} minutes ({took:.0f} s)", kept=took < LIMIT_S)


def _judge_leases(demo: Demo, usd: float) -> None:
    """The bill against what the provider itself has of its machines."""
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
        f"each of {len(theirs)} machines is on one lease, to the provider's second", kept=ours == theirs
    )
    paid = sum(one.usd for one in bills(demo))
    demo.check(f"the bill adds up to the leases (${paid:.4f})", kept=abs(paid - usd) < 1e-6)


def show(demo: Demo) -> None:
    """The bill, and the promises."""
    machines = _table("Machines", "machine", "market", "billed", "cost", "why it ended")
    for one in reversed(list(demo.client.machines())):
        machines.add_row(
            one.node or one.id,
            one.market,
            f"{one.billed_s:.1f} s",
            f"${one.cost_usd:.5f}",
            f"{one.reason}: {one.message}",
        )
    bill = _table("The bill", "job", "useful", "starting, resizing", "lost", "idle", "dollars")
    by_job = usage(demo, GroupBy.JOB)
    for group in (*by_job.groups, None):
        one = by_job.total if group is None else group
        label = "all" if group is None else group.label or "nobody"
        parts = (one.useful_usd, one.resize_usd, one.lost_usd, one.idle_usd, one.usd)
        bill.add_row(label, *(f"${part:.5f}" for part in parts), end_section=group is by_job.groups[-1])
    demo.console.print()
    demo.console.print(machines)
    demo.console.print(bill)
    for promise, kept in demo.checks:
        demo.console.print(f"{'[green]kept  [/]' if kept else '[red]BROKEN[/]'}  {promise}")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_style="bold", title_justify="left")
    for column in columns:
        table.add_column(column)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", action="store_true", help="keep the data folder, with all logs")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `with` stops what was started
    console = Console(width=120, highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="headway-money-"))
    offers = folder / "offers.yaml"
    write_offers(offers, [])
    began = time.monotonic()
    broken = True
    try:
        console.print("[bold]Headway[/]: starting PostgreSQL, Redis and the service, without any machine")
        stack = LocalStack(folder / "data", agents=0, rent=offers, settings=SETTINGS)
        with stack, stack.client() as client:
            demo = Demo(stack, client, offers, console, began)
            demo.say(f"ready at {stack.url}")
            play(demo)
            judge(demo)
            show(demo)
            broken = not all(kept for _, kept in demo.checks)
    except BrokenPromise as error:
        console.print(f"[red]BROKEN[/]  {error}")
    if broken or arguments.keep:
        console.print(f"Data and logs are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
