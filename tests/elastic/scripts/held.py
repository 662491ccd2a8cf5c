"""Run a training script of somebody else so that a test decides how many steps it may take.

    held.py SCRIPT [ARGUMENTS]

Rank 0 waits before a forward pass of training, as `Faults` says, except one for a loss (manual optimization). The script runs in the folder `HELD_IN`, if it is set.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from faults import Faults
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from headway.train.gradients.module import ElasticModule


class Present:
    """This process as `Faults` knows a run."""

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def is_main(self) -> bool:
        return self.rank == 0


faults = Faults(Present())


def hold(module: nn.Module, inputs: Any) -> None:
    of_loss = any(isinstance(one, torch.Tensor) and one.requires_grad for one in inputs)
    if isinstance(module, ElasticModule) and torch.is_grad_enabled() and not of_loss:
        faults.in_body()


register_module_forward_pre_hook(hold)
script = sys.argv[1]
os.chdir(os.environ.get("HELD_IN", "."))
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(script).parent))
runpy.run_path(script, run_name="__main__")
