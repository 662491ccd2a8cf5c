"""Accelerate, and the libraries built on it, as programs of one process, while Headway connects the ranks."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState

import headway
from headway.train import Run

_LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
"""Environment variables from which Accelerate learns of other processes."""


def elastic_run(**arguments: Any) -> Run:
    """Join the training run as `headway.init(**arguments)` does, and make Accelerate see this process only.

    Call it before the script makes an `Accelerator` or `TrainingArguments`. The variables of the launcher are removed
    from the environment, because Accelerate would form a process group of its own.
    """
    run = headway.init(**arguments)
    for name in _LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    os.environ["ACCELERATE_TORCH_DEVICE"] = str(run.device)
    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001  # as TrainingArguments does
    logging.getLogger("transformers.training_args").addFilter(_is_useful)
    return run


def require_single_process() -> None:
    """Raise an error if Accelerate may know other processes.

    Raises:
        ValueError: the script did not begin with `elastic_run`.
    """
    if any(name in os.environ for name in _LAUNCHER_VARIABLES):
        raise ValueError(
            "Accelerate would form a process group of its own: begin the script with `run = elastic_run()` instead of "
            "`headway.init()`, before it makes an Accelerator or TrainingArguments"
        )


def show_rank(run: Run) -> None:
    """Set the rank that Accelerate knows, by which libraries choose the process that prints and saves."""
    for state in (PartialState(), AcceleratorState()):
        state.process_index = run.rank


def use_device(run: Run) -> None:
    """Select the run's device again, because `TrainingArguments` select the first one."""
    if run.device.type == "cuda":
        torch.cuda.set_device(run.device)


def _is_useful(record: logging.LogRecord) -> bool:
    """Return False for the advice to let the Trainer form a process group, because Headway's exists."""
    return "parallel_mode != ParallelMode.DISTRIBUTED" not in record.getMessage()
