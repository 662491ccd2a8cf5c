"""Launchers in the commands of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from headway.contract.launchers import launcher_in, launcher_warning
from headway.contract.spec import JobSpec


@pytest.mark.parametrize(
    ("run", "launcher"),
    [
        ("torchrun --nproc-per-node 2 train.py", "torchrun"),
        ("OMP_NUM_THREADS=1 exec /opt/bin/torchrun train.py", "torchrun"),
        ("pip install -e . && torchrun train.py", "torchrun"),
        ("set -e\nexport A=1\nsrun \\\n  python train.py", "srun"),
        ("accelerate launch train.py", "accelerate launch"),
        ("uv run deepspeed train.py --deepspeed", "deepspeed"),
        ("mpirun -np 2 python train.py", "mpirun"),
        ("python3 -u -m torch.distributed.run --standalone train.py", "torchrun"),
        ("python -m torch.distributed.launch train.py", "torch.distributed.launch"),
        ("python -m accelerate.commands.launch train.py", "accelerate launch"),
        ("python train.py --deepspeed ds.json", None),
        ("python train.py -m torch.distributed.run", None),
        ("python train.py torchrun", None),
        ("accelerate env", None),
        ("echo 'use torchrun'", None),
        ("python train.py  # torchrun train.py", None),
        ("python -m pkg.torchrun", None),
        ("python 'unclosed", None),
        ("A=1", None),
    ],
)
def test_the_launcher_that_a_command_starts(run: str, launcher: str | None) -> None:
    assert launcher_in(run) == launcher


@pytest.mark.parametrize(
    ("fields", "warns"),
    [
        ({}, True),
        ({"elastic": {"min": 2, "max": 2, "resize": "restart"}}, True),
        ({"elastic": {"max": 1}, "launch": "plain"}, False),
        ({"elastic": {"max": 1, "resize": "never"}}, False),
    ],
)
def test_a_launcher_is_warned_of_unless_the_command_starts_once(fields: dict[str, Any], warns: bool) -> None:
    warning = launcher_warning(JobSpec.model_validate({"name": "job", "run": "torchrun train.py", **fields}))
    assert (warning is not None) == warns
    assert warning is None or ("starts torchrun" in warning and "launch: plain" in warning)
