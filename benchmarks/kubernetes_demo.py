"""One elastic job on two nodes of a real control plane of Kubernetes: a pod of a higher priority class takes one, and gives it back.

    python -m benchmarks.kubernetes_demo

The nodes are played on this host, with two slots each. It prints the steps that the job lost, its longest pause, and how long each pod ran
beside Headway's bill. It exits with 1 if a step was lost, if a pause took a second or more, or if a bill differs by more than two seconds.

It needs root and a control plane (`KUBEBUILDER_ASSETS`; `make kubernetes` says what is missing).
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.arguments import run_benchmark, shared_folder, temporary_folder
from benchmarks.engines.kubernetes_cluster import INSTALLED, MISSING, Kubernetes, kubernetes_cluster
from benchmarks.leases import AGENT_ENTRY, SETTINGS, Pool
from benchmarks.slurm_demo import say
from headway.client.client import Client
from headway.local.stack import LocalStack

NODES = 2
_PAUSE_S = 1.0
_TOLERANCE_S = 2.0
"""Kubernetes writes the times of a pod in whole seconds."""
_GIVEN_BACK_S = 60.0


def play(folder: Path) -> bool:
    """Run the demonstration, and return whether its claims held."""
    with kubernetes_cluster(folder / "kubernetes", nodes=NODES) as kubernetes:
        kubernetes.images[SETTINGS["HEADWAY_KUBERNETES_IMAGE"]] = AGENT_ENTRY
        settings = SETTINGS | {"KUBECONFIG": str(kubernetes.kubeconfig)}
        with LocalStack(folder / "stack", agents=0, settings=settings) as stack, stack.client() as client:
            pool = Pool(client, kubernetes, shared_folder(folder))
            pool.on_all()
            say(f"The job trains on {NODES} nodes, in a pod on each.")
            pool.preempted()
            say("A pod of a higher priority class took a node, and ended. The job trained on.")
            pool.on_all()
            say(f"The job trains on {NODES} nodes again.")
            switches = pool.switches()
            lost = max(int(one.data["lost_steps"]) for one in switches)
            pause_s = max(float(one.data["pause_s"]) for one in switches)
            end = pool.finish()
            say(f"Changes of members: {len(switches)}. Steps lost: {lost}. Longest pause: {pause_s:.2f} s.")
            say(f"Restarts: {end['restarts']}. Every epoch exact: {end['exact_epochs']}.")
            return compare(client, kubernetes) and lost == 0 and pause_s < _PAUSE_S


def compare(client: Client, kubernetes: Kubernetes) -> bool:
    """Print how long each pod ran beside the bill, and return whether they agree."""
    give_up_s = time.monotonic() + _GIVEN_BACK_S
    while (
        any(one.state not in ("gone", "failed") for one in client.machines()) and time.monotonic() < give_up_s
    ):
        time.sleep(0.5)
    say(f"{'pod':>44} {'ran':>9} {'bill':>9} {'USD':>9}")
    worst_s = 0.0
    for one in sorted(client.machines(), key=lambda one: one.requested_at):
        if one.external_id is not None:
            ran_s = kubernetes.ran_s.get(one.external_id, 0.0)
            worst_s = max(worst_s, abs(ran_s - one.billed_s))
            say(f"{one.external_id:>44} {ran_s:>7.1f} s {one.billed_s:>7.1f} s {one.cost_usd:>9.6f}")
    say(f"Largest difference: {worst_s:.1f} s.")
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
