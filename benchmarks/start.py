"""From submit to the first training step on an idle, warm node.

    python -m benchmarks.start --json

`submit_to_first_step_s`: from before the POST to the first completed optimizer step, the median over
`--repeats` jobs, through the real API, scheduler, Redis and agent. `bare_s`: the same script started by
hand with the same interpreter. Both on one slot.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headway.client import Client
from headway.contract.jobs import JobState
from headway.contract.spec import JobSpec
from headway.local.stack import LocalStack

SCRIPT = Path(__file__).parent / "scripts" / "first_step.py"


def submitted_s(client: Client, number: int) -> float:
    """Seconds from submit to first step of one job."""
    spec = JobSpec.model_validate({"name": f"start-{number}", "run": f"python {SCRIPT}"})
    began = time.time()
    job = client.submit(spec)
    states = [seen.state for seen in client.wait(job.id, every_s=0.05)]
    if states[-1] is not JobState.SUCCEEDED:
        raise RuntimeError(f"{job.name} ended {states[-1]}: {client.job(job.id).message}")
    first = next(event for event in client.events(job.id) if event.kind == "first_step")
    return first.at.timestamp() - began


def bare_s() -> float:
    """Seconds from starting the script by hand to its first step."""
    began = time.time()
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    found = re.search(r"first step at ([\d.]+)", done.stdout)
    if found is None:
        raise RuntimeError(f"the script took no step: {done.stdout}")
    return float(found[1]) - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalStack(Path(folder), agents=1, slots=2) as stack,
        stack.client() as client,
    ):
        submitted_s(client, 0)  # warms the node: the first job after the agent's start
        submitted = [submitted_s(client, number + 1) for number in range(arguments.repeats)]
    bare = [bare_s() for _ in range(arguments.repeats)]
    result = {
        "submit_to_first_step_s": round(statistics.median(submitted), 3),
        "slowest_s": round(max(submitted), 3),
        "bare_s": round(statistics.median(bare), 3),
        "ratio": round(statistics.median(submitted) / statistics.median(bare), 3),
        "repeats": arguments.repeats,
    }
    print(json.dumps(result) if arguments.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
