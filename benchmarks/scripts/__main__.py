"""Scripts as people write them, under changes of size, losses, pauses and restarts.

    python -m benchmarks.scripts --json

Each case is one random script (`tests/elastic/behaviours.py`) with random events (`tests/elastic/plays.py`), trained by real ranks
on this machine. Its final weights are compared with those of the same script without Headway, within 1e-6.

`cases`: scripts that ran. `equal`: those with right weights. `refused`: those that ended or warned with a sentence that names
the cause. `silent`: those with wrong weights and without such a sentence. `killed_healthy`: those that ended by an error
without a reason. `unreadable_saves`: complete checkpoints of all cases that cannot be read. `faults`: seeds of the cases
behind these three.
`guard_step_ratio`: step time with `audit: replicas` over without, from the same steps of one run with two ranks: all time over
the time outside of the audit, which includes its waits for the other rank. `guard_steps`, `guard_checks`: steps and
comparisons behind it.

The exit code is 1 after a fault.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.arguments import FOLDER, benchmark_parser, run_benchmark, show, temporary_folder
from headway.contract.runtime import EXIT_DONE
from tests.elastic.harness import SCRIPTS, Job, codes
from tests.elastic.plays import Verdict, perform, random_play

FIRST_SEED = 100
QUICK_CASES, QUICK_GUARD_STEPS = 2, 200
_SHOWN = 4000
"""Characters of a fault's output on stderr."""


def judge(seed: int, folder: Path) -> Verdict:
    """Carry out one case in a folder."""
    numbers = count()

    def make(script: str, *arguments: object, **env: str) -> Job:
        own = folder / str(next(numbers))
        own.mkdir(parents=True)
        return Job(own, SCRIPTS / script, [str(one) for one in arguments], env)

    return perform(random_play(seed), make)


def measure_guard(folder: Path, steps: int) -> dict[str, Any]:
    """Return the figures of the guard in a run of two ranks.

    Raises:
        RuntimeError: the run failed.
    """
    folder.mkdir()
    job = Job(folder, FOLDER / "scripts" / "guarding.py", [str(steps), str(folder / "times")])
    try:
        ended = job.run(2)
    finally:
        job.end()
    if codes(ended) != [EXIT_DONE] * 2:
        raise RuntimeError(f"the run with the guard failed:\n{ended.output()[-_SHOWN:]}")
    times = json.loads((folder / "times").read_text(encoding="utf-8"))
    return {
        "guard_step_ratio": round(times["all_s"] / (times["all_s"] - times["audit_s"]), 6),
        "guard_steps": times["steps"],
        "guard_checks": times["checks"],
    }


def main() -> None:
    parser = benchmark_parser(__doc__, quick="two cases")
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--guard-steps", type=int, default=3000)
    arguments = parser.parse_args()
    cases = QUICK_CASES if arguments.quick else arguments.cases
    found: Counter[str] = Counter()
    faults: list[int] = []
    with temporary_folder() as folder:
        for seed in range(arguments.first_seed, arguments.first_seed + cases):
            verdict = judge(seed, folder / f"case-{seed}")
            found[verdict.fault or ("refused" if verdict.said else "equal")] += 1
            found["unreadable"] += len(verdict.unreadable)
            if not verdict.is_right:
                faults.append(seed)
                sys.stderr.write(f"{random_play(seed)}\n{verdict.unreadable}\n{verdict.detail[-_SHOWN:]}\n")
        guard = measure_guard(
            folder / "guard", QUICK_GUARD_STEPS if arguments.quick else arguments.guard_steps
        )
    result = {
        "cases": cases,
        **{key: found[key] for key in ("equal", "refused", "silent", "killed_healthy")},
        "unreadable_saves": found["unreadable"],
        "faults": faults,
        **guard,
    }
    show(result, arguments)
    sys.exit(int(bool(faults)))


if __name__ == "__main__":
    run_benchmark(main)
