"""Run the self-test, and print each finding as a line of JSON. `headway doctor --gpu` starts it.

python -m headway.selftest [--cpu]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import torch

from headway.lookups import ask_no_name_servers
from headway.selftest.findings import Finding, failure, findings_of
from headway.selftest.members import TrialFailed
from headway.selftest.trial import StateKind, run_trial

_GPU_WIDTH = 2048
"""Units of a layer on a GPU: 34 M parameters, 400 MB of state."""
_CPU_WIDTH = 64


def run_self_test(*, cpu: bool) -> Iterator[Finding]:
    """Yield the findings about the GPUs of this machine, or about its CPU."""
    gpus = 0 if cpu else torch.cuda.device_count()
    if not cpu:
        yield _devices(gpus)
    if not cpu and not gpus:
        return
    for kind in get_args(StateKind):
        with tempfile.TemporaryDirectory(prefix="headway-selftest-") as folder:
            try:
                result = run_trial(kind, Path(folder), gpus=gpus, width=_CPU_WIDTH if cpu else _GPU_WIDTH)
            except TrialFailed as error:
                yield failure(kind, str(error))
            else:
                yield from findings_of(kind, result)


def _devices(gpus: int) -> Finding:
    if not gpus:
        return Finding(
            "gpus",
            held=False,
            found=f"torch {torch.__version__} sees no GPU.",
            why="Ranks would train on the CPU.",
            hint="Install a CUDA build of torch and the NVIDIA driver: nvidia-smi must list the GPUs.",
        )
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    shared = "" if gpus > 1 else " Two ranks share it over TCP, so the pauses are not those of two GPUs."
    return Finding("gpus", held=True, found=f"{gpus} × {torch.cuda.get_device_name(0)}, NCCL {nccl}.{shared}")


def main() -> None:
    """Parse the arguments, and print the findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="test ranks on the CPU, over gloo")
    ask_no_name_servers()  # this process keeps the stores
    for finding in run_self_test(cpu=parser.parse_args().cpu):
        sys.stdout.write(json.dumps(asdict(finding)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
