"""Ends of ranks outside of Headway's agent and as its launcher runs them: none may abort or hang.

    python -m benchmarks.endings --json

Short trainings of one or two ranks on CPUs, in turns: with a replicated and an FSDP2 model, with and without partial gradients,
checkpoints in progress and a tracker. They end by the script's end, an exception on every rank or on one, `sys.exit` in the
middle of an epoch, or a stop. Half of the interpreters end by themselves, as by hand and under torchrun.

`endings`: ranks that ended. `aborted`: those with an exit code other than asked. `hung`: those that had to be killed after
`HUNG_S`. `failures`: the trainings of both, with the exit codes of their ranks.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.arguments import FOLDER, benchmark_parser, run_benchmark, show, temporary_folder
from headway.contract.runtime import (
    ENV_CHECKPOINT_EVERY_S,
    ENV_CHECKPOINT_URI,
    ENV_MIN_DEPTH,
    ENV_TRACKERS,
    EXIT_DONE,
    EXIT_RETRY,
    EXIT_STOPPED,
)
from headway.local.guard import MARK
from headway.local.ports import free_port

HUNG_S = 120.0
ALLOWED = {
    "end": {EXIT_DONE},
    "error": {1, EXIT_RETRY},  # a rank that loses its peer first asks for a restart
    "lost": {1, EXIT_RETRY},
    "exit": {3, EXIT_RETRY},
    "stop": {EXIT_STOPPED},
}
"""Exit codes of the ranks, by the ending."""
Codes = list[int | None]


@dataclass(frozen=True)
class Case:
    """One training. `launched`: the launcher's program runs its ranks."""

    ending: str
    launched: bool
    ranks: int
    sharded: bool
    partial: bool
    saves: bool

    def environments(self, folder: Path) -> list[dict[str, str]]:
        """Return the environment of each rank, whose files go to the folder."""
        kept = {name: os.environ[name] for name in ("PATH", MARK) if name in os.environ}
        common = {**kept, "PYTHONPATH": str(FOLDER.parent), "OMP_NUM_THREADS": "1"}
        if self.partial:
            common[ENV_MIN_DEPTH] = "0.5"
        if self.saves:
            common |= {ENV_CHECKPOINT_URI: folder.as_uri(), ENV_CHECKPOINT_EVERY_S: "0.01"}
            common[ENV_TRACKERS] = "tensorboard"
        if self.ranks == 1:
            return [common]
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(self.ranks)}
        return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(self.ranks)]


def cases() -> Iterator[Case]:
    """Return all cases, again and again: first each ending once, by turns in both ways."""
    both = (False, True)
    for sharded, saves, partial, ranks, launched in itertools.cycle(
        itertools.product(both, both, both, (2, 1), both)
    ):
        for ending in ALLOWED:
            if not (ending == "lost" and ranks == 1):
                yield Case(ending, launched, ranks, sharded, partial and not sharded, saves)


@contextmanager
def server() -> Iterator[subprocess.Popen[str]]:
    """Start the process that forks ranks."""
    script = FOLDER / "scripts" / "ending_server.py"
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, str(script)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def end(case: Case, steps: int, forks: subprocess.Popen[str], folder: Path) -> Codes:
    """Run one training, and return the exit codes of its ranks: negative for a signal, None for one that hung.

    Raises:
        RuntimeError: the process that forks ranks ended.
    """
    folder.mkdir()
    script = FOLDER / "scripts" / "ending_rank.py"
    order = {
        "program": [str(script), case.ending, str(steps), str(int(case.sharded))],
        "environments": case.environments(folder),
        "log": str(folder / "log"),
        "launched": case.launched,
        "within_s": HUNG_S,
    }
    assert forks.stdin is not None
    assert forks.stdout is not None
    forks.stdin.write(json.dumps(order) + "\n")
    forks.stdin.flush()
    line = forks.stdout.readline()
    if not line:
        raise RuntimeError("the process that forks ranks ended; see its output above")
    codes: Codes = json.loads(line)
    return codes


def run(count: int, steps: int) -> dict[str, Any]:
    """End at least so many ranks, and return the figures."""
    endings = aborted = hung = 0
    failures: list[dict[str, Any]] = []
    with temporary_folder() as folder, server() as forks:
        for number, case in enumerate(cases()):
            codes = end(case, steps, forks, folder / str(number))
            endings += len(codes)
            wrong = [code for code in codes if code not in ALLOWED[case.ending]]
            hung += wrong.count(None)
            aborted += len(wrong) - wrong.count(None)
            if wrong:
                failures.append({**asdict(case), "codes": codes})
                sys.stderr.write((folder / str(number) / "log").read_text(encoding="utf-8")[-2000:])
            if endings >= count:
                break
    return {"endings": endings, "aborted": aborted, "hung": hung, "failures": failures}


def main() -> None:
    parser = benchmark_parser(__doc__, quick="ten endings")
    parser.add_argument("--endings", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=4, help="of an epoch")
    arguments = parser.parse_args()
    show(run(10 if arguments.quick else arguments.endings, arguments.steps), arguments)


if __name__ == "__main__":
    run_benchmark(main)
