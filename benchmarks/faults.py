"""The fault run: check the guarantees of a cluster while faults are injected into all of its parts.

    python -m benchmarks.faults --seed 7 --minutes 60 --faults 600 --json

A cluster of two APIs, two schedulers, three agents with two slots each, PostgreSQL and Redis trains jobs on this machine. The
run kills and freezes processes, cuts, blocks and delays connections, fills disks, and sets clocks wrong. Meanwhile users
submit, resize, pause, cancel and drain. With `--hosts 4`, four agents are in network namespaces, and the run also cuts, slows
and unplugs the links of these hosts. After the last fault all jobs must end. Then a checker counts violations, using only
evidence from outside the cluster: journals of ranks, storage, agents' folders, and the answers to clients.

`lost_jobs`: acknowledged submits that are unknown or ended in a wrong state. `doubled_jobs`: surplus jobs.
`double_slots`: pairs of processes alive on one slot at the same time.
`lost_samples`, `repeated_samples`: samples of an epoch that the final weights of a job have not seen, or saw more than once.
`stale_writes`: checkpoints or states of an older generation after those of a newer one.
`differing_losses`: epochs whose loss differs from that of an undisturbed run. `left_behind`: processes, ports and files.
`anomalies`: jobs for which no order of the recorded operations of clients explains all answers: an acknowledged submit, resize or
cancel was lost, or a read was older than a write before it. `operations`: the recorded operations.
`faults`, `faults_by_kind`: faults that were injected; `kinds`: their number of kinds.
`recovered_s`: from the end of the last fault until every node took jobs and every job with slots trained. `settled_s`: until
the last job had ended.

The exit code is 1 after a violation. The same seed, minutes and faults give the same plan. `record.jsonl` in the folder of
`--keep` has the course of the run. See docs/reliability.md.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from benchmarks.faulting.rig import Shape
from benchmarks.faulting.run import Order, carry_out, save
from benchmarks.faulting.verdict import findings, summary
from benchmarks.networking.namespaces import why_not

_FAULTS_PER_MINUTE = 10
_JOBS_PER_MINUTE = 4
_SHOWN = 30
QUICK_MINUTES, QUICK_EPOCHS = 0.1, 5


def fault_run(order: Order, keep: Path | None = None) -> dict[str, Any]:
    """Execute a fault run, and return its result. The record, the journals and the logs are copied to `keep`, if any."""
    with temporary_folder() as folder:
        evidence = carry_out(order, folder, lambda: _keep(folder, keep))
        found = findings(evidence)
        save(evidence, folder / "evidence.json")
        sentences = [f"{one.promise}: {one.whom}: {one.sentence}" for one in found]
        (folder / "findings.txt").write_text("".join(f"{one}\n" for one in sentences))
        _keep(folder, keep)
    return {**summary(order, evidence, found), "findings": sentences[:_SHOWN]}


def _keep(folder: Path, keep: Path | None) -> None:
    """Copy the record, the journals and the logs of a run."""
    if keep is None:
        return
    keep.mkdir(parents=True, exist_ok=True)
    for name in ("record.jsonl", "evidence.json", "findings.txt"):
        if (folder / name).exists():
            shutil.copy2(folder / name, keep / name)
    for name in ("logs", "journals", "agents"):
        if (folder / name).exists():
            shutil.copytree(
                folder / name,
                keep / name,
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("*.sock", "work"),
            )


def main() -> None:
    parser = benchmark_parser(__doc__, quick="two faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, default=1.0, help="duration of the period in which faults begin"
    )
    parser.add_argument(
        "--faults", type=int, help=f"number of faults; default: {_FAULTS_PER_MINUTE} a minute"
    )
    parser.add_argument(
        "--hosts", type=int, help="run this number of agents in network namespaces; needs root"
    )
    parser.add_argument("--jobs", type=int, help=f"submits meanwhile; default: {_JOBS_PER_MINUTE} a minute")
    parser.add_argument("--keep", type=Path, help="folder for the record, the journals and the logs")
    arguments = parser.parse_args()
    minutes = QUICK_MINUTES if arguments.quick else arguments.minutes
    order = Order(
        seed=arguments.seed,
        minutes=minutes,
        faults=round(_FAULTS_PER_MINUTE * minutes) if arguments.faults is None else arguments.faults,
        jobs=round(_JOBS_PER_MINUTE * minutes) if arguments.jobs is None else arguments.jobs,
    )
    if arguments.hosts is not None:
        if (missing := why_not()) is not None:
            raise RuntimeError(missing)
        order = dataclasses.replace(order, shape=Shape(agents=arguments.hosts, apart=True))
    if arguments.quick:
        order = dataclasses.replace(order, first_jobs=1, epochs=QUICK_EPOCHS)
    result = fault_run(order, arguments.keep)
    show(result, arguments)
    sys.exit(int(bool(result["findings"]) or result["settled_s"] is None))


if __name__ == "__main__":
    run_benchmark(main)
