"""One elastic job on four nodes of a real Slurm: another user's job takes a node, and gives it back.

    python -m benchmarks.slurm_demo

Four nodes are played on this host, with one slot each. It prints the steps that the job lost, its longest pause, and Slurm's
record of each pilot beside Headway's bill. It exits with 1 if a step was lost, or if record and bill differ by more than a second.

It needs root and Slurm (Debian: slurmctld, slurmd, slurm-client).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.arguments import run_benchmark, shared_folder, temporary_folder
from benchmarks.engines.slurm_cluster import INSTALLED, MISSING, slurm_cluster
from benchmarks.slurm import SETTINGS, Pool
from headway.client.client import Client
from headway.local.stack import LocalStack

NODES = 4
OTHER_USER = "nobody"
_TOLERANCE_S = 1.0
"""Slurm's record has whole seconds."""
_GIVEN_BACK_S = 60.0


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)  # output of a program


def play(folder: Path) -> bool:
    """Run the demonstration, and return whether the job lost no step, and record and bill agree."""
    with slurm_cluster(folder / "slurm", nodes=NODES, cpus=1, kill_wait_s=30) as slurm:
        os.environ["SLURM_CONF"] = str(slurm.conf)
        settings = SETTINGS | {"HEADWAY_SLURM_LOG": str(slurm.folder / "pilot-%j.log")}
        with LocalStack(folder / "stack", agents=0, settings=settings) as stack, stack.client() as client:
            pool = Pool(client, slurm, shared_folder(folder))
            pool.on_all()
            say(f"The job trains on {NODES} nodes of the preemptible partition.")
            left_s = pool.preempt(OTHER_USER)
            say(
                f"A job of {OTHER_USER} took a node {left_s:.1f} s after its submit, and ended. The job trained on."
            )
            pool.on_all()
            say(f"The job trains on {NODES} nodes again.")
            switches = pool.switches()
            lost = max(int(one.data["lost_steps"]) for one in switches)
            pause_s = max(float(one.data["pause_s"]) for one in switches)
            end = pool.finish()
            say(f"Changes of members: {len(switches)}. Steps lost: {lost}. Longest pause: {pause_s:.2f} s.")
            say(f"Restarts: {end['restarts']}. Every epoch exact: {end['exact_epochs']}.")
            return compare(client, slurm.accounts) and lost == 0


def compare(client: Client, accounts: Callable[[], dict[str, float]]) -> bool:
    """Print Slurm's record of each pilot beside the bill, and return whether they agree."""
    give_up_s = time.monotonic() + _GIVEN_BACK_S
    while (
        any(one.state not in ("gone", "failed") for one in client.machines()) and time.monotonic() < give_up_s
    ):
        time.sleep(0.5)
    record = accounts()
    say(f"{'pilot':>6} {'Slurm':>9} {'bill':>9} {'USD':>9}")
    worst_s = 0.0
    for one in sorted(client.machines(), key=lambda one: one.requested_at):
        if one.external_id is not None:
            theirs_s = record.pop(one.external_id, 0.0)
            worst_s = max(worst_s, abs(theirs_s - one.billed_s))
            say(f"{one.external_id:>6} {theirs_s:>7.0f} s {one.billed_s:>7.0f} s {one.cost_usd:>9.6f}")
    say(f"Largest difference: {worst_s:.0f} s.")
    return worst_s <= _TOLERANCE_S


def main() -> None:
    """Run the demonstration."""
    if not INSTALLED:
        raise SystemExit(MISSING)
    with temporary_folder() as folder:
        if not play(folder):
            raise SystemExit(1)


if __name__ == "__main__":
    run_benchmark(main)
