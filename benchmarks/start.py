"""Time from submit to the first training step on an idle, warm node.

    python -m benchmarks.start --json

`submit_to_first_step_s`: from before the POST to the first completed optimizer step, through the real API, scheduler, Redis
and agent, on one slot; the median over `--repeats` jobs.
`bare_s`: the same script started directly with the same interpreter.
`cli_start_s`: duration of `headway ps` in a new process, the median of `CALLS`. `cli_cpu_s`: its processor time, which
depends less on other load. `cli_help_s`: duration of `headway --help`.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from headway.local.stack import LocalStack

SCRIPT = Path(__file__).parent / "scripts" / "first_step.py"
CALLS = 10


def submitted_s(client: Client, number: int) -> float:
    """Return the seconds from submit to the first step of one job.

    Raises:
        RuntimeError: the job did not succeed.
    """
    spec = JobSpec.model_validate(
        {"name": f"start-{number}", "run": f"python {SCRIPT.name}", "workdir": str(SCRIPT.parent)}
    )
    began = time.time()
    job = client.submit(spec)
    states = [view.state for view in client.watch(job.id, every_s=0.05)]
    if states[-1] is not JobState.SUCCEEDED:
        raise RuntimeError(f"{job.name} ended {states[-1]}: {client.job(job.id).message}")
    first = next(event for event in client.events(job.id) if event.kind == "first_step")
    return first.at.timestamp() - began


def bare_s() -> float:
    """Return the seconds from the direct start of the script to its first step.

    Raises:
        RuntimeError: the script took no step.
    """
    began = time.time()
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    found = re.search(r"first step at ([\d.]+)", done.stdout)
    if found is None:
        raise RuntimeError(f"the script took no step: {done.stdout}")
    return float(found[1]) - began


def call_s(stack: LocalStack, *arguments: str) -> tuple[float, float]:
    """Return the wall and processor seconds of one command in a new process, which may write and use bytecode files."""
    env = {**os.environ, "HEADWAY_URL": stack.url, "HEADWAY_TOKEN": stack.token}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "headway.cli", *arguments], env=env, capture_output=True, check=True
    )
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = benchmark_parser(__doc__, quick="one job")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    repeats = 1 if arguments.quick else arguments.repeats
    with (
        temporary_folder() as folder,
        LocalStack(folder, agents=1, slots=2) as stack,
        stack.client() as client,
    ):
        call_s(stack, "ps")  # compiles its modules
        calls = [call_s(stack, "ps") for _ in range(2 if arguments.quick else CALLS)]
        helps = [call_s(stack, "--help") for _ in range(2 if arguments.quick else CALLS)]
        submitted_s(client, 0)  # warm-up
        submitted = [submitted_s(client, number + 1) for number in range(repeats)]
    bare = [bare_s() for _ in range(repeats)]
    result = {
        "submit_to_first_step_s": round(statistics.median(submitted), 3),
        "slowest_s": round(max(submitted), 3),
        "bare_s": round(statistics.median(bare), 3),
        "ratio": round(statistics.median(submitted) / statistics.median(bare), 3),
        "cli_start_s": round(statistics.median(wall_s for wall_s, _ in calls), 3),
        "cli_cpu_s": round(statistics.median(cpu_s for _, cpu_s in calls), 3),
        "cli_help_s": round(statistics.median(wall_s for wall_s, _ in helps), 3),
        "repeats": repeats,
    }
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
