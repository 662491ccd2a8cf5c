"""Hugging Face's `Trainer` as a job that is resized by restarts, with exact sample positions.

    args = TrainingArguments(**elastic_arguments(global_batch=64), num_train_epochs=3, learning_rate=2e-5)
    trainer = Trainer(model=model, args=args, train_dataset=data)
    elastic_train(trainer)

The Trainer keeps its loop, its devices and its checkpoints. Headway divides the global batch over the ranks
and selects the samples by the number of the step. It requests a checkpoint before each stop, and resumes from
the newest complete one. `docs/guides/lightning-and-transformers.md` describes the consequences.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from headway.contract.runtime import (
    EXIT_STOPPED,
    Checkpointed,
    Completed,
    FirstStep,
    Hello,
    Progress,
    Restored,
    Stopped,
)
from headway.contract.values.places import folder_of
from headway.integrations.steps import StepBatches, divide_batch
from headway.preemption import StopRequest
from headway.train.checkpoint.schedule import Schedule
from headway.train.host.environment import Environment
from headway.train.membership.control import Mailbox, write_stacks_on_request
from headway.train.meter import Meter
from headway.train.reporting import PROGRESS_EVERY_S
from headway.train.state.sync import leave
from headway.train.trackers.sender import TrackedReport
from headway.train.value_sender import ValueSender

__all__ = ["HeadwayCallback", "elastic_arguments", "elastic_train"]

FOLDER = "transformers"
"""Folder of the Trainer's checkpoints, beside Headway's own."""
MARK = "headway.json"
"""File that marks a checkpoint as complete, because it is written last."""


def elastic_arguments(
    *, global_batch: int, max_local_batch: int | None = None, output_dir: str | None = None
) -> dict[str, Any]:
    """Return the `TrainingArguments` with which a step takes `global_batch` samples at the present size.

    Args:
        global_batch: samples of one optimizer step, over all ranks. `batch.global` of the job file overrides it.
        max_local_batch: samples that fit on a device in one pass; more are accumulated. `batch.max_local` overrides it.
        output_dir: folder for checkpoints that all hosts of the job share; None: beside the job's own checkpoints.

    Raises:
        ValueError: the batch cannot be divided equally over the ranks, or the job's checkpoints are in an object store,
            which the Trainer cannot write to, and there is no `output_dir`.
    """
    environment = Environment.read(os.environ)
    local, passes = divide_batch(
        environment.global_batch or global_batch,
        environment.world_size,
        environment.max_local_batch or max_local_batch,
    )
    return {
        "output_dir": output_dir or str(_folder(environment.checkpoint_uri)),
        "per_device_train_batch_size": local,
        "gradient_accumulation_steps": passes,
        "save_strategy": "no",  # HeadwayCallback decides when to save
        "save_total_limit": environment.checkpoint_keep,
        "disable_tqdm": True,
        "report_to": "none",  # the job file's `trackers` apply instead
        "use_cpu": not torch.cuda.is_available(),
    }


def _folder(checkpoint_uri: str | None) -> Path:
    uri = checkpoint_uri or ""
    folder = folder_of(uri)
    if folder is None:
        raise ValueError(
            f"the Trainer saves into a folder, and this job's checkpoints go to {uri.partition(':')[0]}: give "
            "elastic_arguments(output_dir=...) a folder that all hosts share"
        )
    return folder / FOLDER


def elastic_train(trainer: Trainer) -> Any:
    """Train from the newest complete checkpoint, if there is one, and return the result of `Trainer.train`.

    After a stop request, the process saves a checkpoint and exits with code 143.

    Raises:
        ValueError: the dataset has no length, or fewer samples than the global batch.
    """
    callback = HeadwayCallback(trainer)
    trainer.add_callback(callback)
    trainer.get_train_dataloader = callback.data
    found = newest(Path(trainer.args.output_dir))
    return trainer.train(resume_from_checkpoint=None if found is None else str(found))


def newest(folder: Path) -> Path | None:
    """Return the complete checkpoint with the most steps in the folder, if there is one."""
    whole = {
        json.loads(mark.read_text())["steps"]: mark.parent for mark in folder.glob(f"checkpoint-*/{MARK}")
    }
    return whole[max(whole)] if whole else None


class HeadwayCallback(TrainerCallback):
    """Callback that reports progress to the agent and makes all ranks save and stop after the same step."""

    def __init__(self, trainer: Trainer) -> None:
        self._environment = environment = Environment.read(os.environ)
        self._trainer = trainer
        self._stop = StopRequest()
        self._stop.listen()
        write_stacks_on_request(environment.control, environment.rank)
        self._mailbox = Mailbox(environment.control, rank=environment.rank, generation=environment.generation)
        self._mailbox.send(Hello)
        self._value_sender = ValueSender(self._mailbox, environment)
        self._schedule = Schedule(environment.checkpoint_every_s, time.monotonic())
        self._meter = Meter(PROGRESS_EVERY_S)
        self._stopping = False
        self._began_s = self._save_began_s = 0.0
        self._first_step: int | None = None
        args, data = trainer.args, trainer.train_dataset
        self._batches = StepBatches(
            len(data),
            local=args.per_device_train_batch_size,
            passes=args.gradient_accumulation_steps,
            rank=environment.rank,
            world_size=environment.world_size,
            seed=args.seed if args.data_seed is None else args.data_seed,
        )
        if not self._batches.steps:
            raise ValueError(
                f"the dataset has {len(data)} samples, fewer than the global batch of {self._batches.global_batch}"
            )

    def data(self) -> DataLoader[Any]:
        """Return the training data, in place of the Trainer's `get_train_dataloader`."""
        args = self._trainer.args
        return DataLoader(
            self._trainer.train_dataset,
            batch_sampler=self._batches,
            collate_fn=self._trainer.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and torch.cuda.is_available(),
        )

    # Events of the Trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Report the checkpoint that was loaded, if any."""
        self._first_step = None
        found = newest(Path(args.output_dir)) if state.global_step else None
        if found is not None and self._is_main:
            from_generation = json.loads((found / MARK).read_text())["generation"]
            self._mailbox.send(Restored, samples=self._samples(state), from_generation=from_generation)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Set the epoch from the number of steps, which determines the order of the samples."""
        self._batches.epoch = state.global_step // self._batches.steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Record the start time of the step."""
        self._began_s = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Agree with the other ranks on a stop or a checkpoint."""
        if self._first_step is None:
            self._first_step = state.global_step
            self._mailbox.send(FirstStep, samples=self._samples(state))
        else:
            self._meter.add(time.perf_counter() - self._began_s)
        if self._is_main and self._meter.due(time.monotonic()):
            self._progress(state)
        now = time.monotonic()
        stops, saves = self._anyone(self._stop.received, self._is_main and self._schedule.due(now))
        self._stopping = stops
        control.should_training_stop = control.should_training_stop or stops
        control.should_save = control.should_save or stops or saves or state.global_step >= state.max_steps
        self._save_began_s = now

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Mark the Trainer's checkpoint as complete once all ranks have written it."""
        self._anyone()
        took_s = time.monotonic() - self._save_began_s
        self._schedule.saved(time.monotonic(), took_s)
        self._schedule.completed(took_s)
        if not self._is_main:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        mark = {"steps": state.global_step, "generation": self._environment.generation}
        (folder / f".{MARK}").write_text(json.dumps(mark))
        (folder / f".{MARK}").replace(folder / MARK)
        self._mailbox.send(
            Checkpointed,
            uri=folder.as_uri(),
            samples=self._samples(state),
            size_bytes=size_bytes,
            save_s=took_s,
            total_s=took_s,
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Report the numbers that the Trainer logs."""
        values = {
            name: float(value)
            for name, value in (logs or {}).items()
            if name != "epoch" and isinstance(value, int | float)
        }
        if values and self._is_main:
            report = TrackedReport(
                step=state.global_step,
                first_step=self._first_step or 0,
                epoch=state.global_step // self._batches.steps,
                samples=self._samples(state),
                generation=self._environment.generation,
                world_size=self._environment.world_size,
                at_s=time.time(),
                values=values,
            )
            self._value_sender.send(report)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Report the end of training, or exit after the checkpoint of a stop request."""
        if self._is_main:
            self._progress(state)
        if self._stopping and state.global_step < state.max_steps:
            self._mailbox.send(Stopped, samples=self._samples(state))
            leave(EXIT_STOPPED)
        self._value_sender.complete = True
        self._mailbox.send(Completed, samples=self._samples(state))
        self._stop.ignore()

    # Helpers of these events

    @property
    def _is_main(self) -> bool:
        return self._environment.rank == 0

    def _samples(self, state: Any) -> int:
        return int(state.global_step) * self._batches.global_batch

    def _anyone(self, *wishes: bool) -> tuple[bool, ...]:
        """Return, for each wish, True if any rank has it. Waits until every rank has called this after the same step."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return wishes
        wanted = torch.tensor([*wishes, True], dtype=torch.int32, device=self._trainer.args.device)
        dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
        return tuple(bool(wish) for wish in wanted.tolist()[:-1])

    def _progress(self, state: Any) -> None:
        batches = self._batches
        self._mailbox.send(
            Progress,
            epoch=state.global_step // batches.steps,
            samples=self._samples(state),
            total_samples=int(state.max_steps) * batches.global_batch,
            **asdict(self._meter.take(time.monotonic())),
            global_batch=batches.global_batch,
            local_batch=self._trainer.args.per_device_train_batch_size,
            accumulation=self._trainer.args.gradient_accumulation_steps,
        )
