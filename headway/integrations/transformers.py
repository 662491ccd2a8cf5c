"""Elastic training with Hugging Face's `Trainer` and its subclasses, such as TRL's `SFTTrainer`.

    run = elastic_run()
    trainer = elastic_class(run, Trainer)(model=model, args=args, train_dataset=data)
    trainer.train()

The Trainer sees a single device and one batch per optimizer step. Headway averages gradients over the present
ranks, distributes the samples, saves checkpoints and changes members between two steps:
`docs/guides/lightning-and-transformers.md`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import RandomSampler
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from headway.integrations.single_process import elastic_run, require_single_process, show_rank, use_device
from headway.train import Run
from headway.train.gradients.module import ElasticModule
from headway.train.loader import Loader
from headway.train.step_feed import StepFeed

__all__ = ["ElasticTrainer", "elastic_class", "elastic_run"]


def elastic_class(run: Run, kind: type[Trainer]) -> Any:
    """Return a subclass of `kind`, a Trainer class, whose `train` is elastic. It takes the same arguments.

    A step takes `per_device_train_batch_size` x `gradient_accumulation_steps` samples at any number of ranks, in passes
    of at most `per_device_train_batch_size`. `batch.global` and `batch.max_local` of the job file override both.

    Raises:
        ValueError: the script did not begin with `elastic_run`.
    """
    require_single_process()
    return type(f"Elastic{kind.__name__}", (ElasticTrainer, kind), {"run": run})


_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes of `torch.compile` that record CUDA graphs."""


def refusal(args: Any) -> str | None:
    """Return the reason why training with these `TrainingArguments` cannot be elastic, with the remedy; None if it can."""
    complaints = (
        (
            args.fp16,
            "fp16 scales losses per rank, so gradients of ranks cannot be summed: use bf16",
        ),
        (
            args.deepspeed or args.deepspeed_plugin or args.fsdp,
            f"{'fsdp' if args.fsdp else 'deepspeed'} forms process groups of fixed size: leave it out, or write the loop with run.prepare(..., parallelize=...)",
        ),
        (
            args.load_best_model_at_end,
            "load_best_model_at_end reads a checkpoint that only one rank has: leave it out, and load the best one after training",
        ),
        (
            args.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"),
            f"the schedule {args.lr_scheduler_type} follows evaluations instead of steps: use another lr_scheduler_type",
        ),
        (
            args.dataloader_drop_last or args.auto_find_batch_size,
            "dataloader_drop_last and auto_find_batch_size change the samples of an epoch: leave them out",
        ),
        (
            args.include_num_input_tokens_seen not in (False, "no"),
            "include_num_input_tokens_seen counts the tokens of one rank: leave it out",
        ),
        (
            args.torch_compile_mode in _CUDA_GRAPHS,
            f"torch_compile_mode={args.torch_compile_mode} records CUDA graphs, which do not contain Headway's exchange of gradients: use another "
            "one, such as default or max-autotune-no-cudagraphs",
        ),
        (
            "lomo" in args.optim or "layerwise" in args.optim,
            f"the optimizer {args.optim} steps within the backward pass: use another one",
        ),
    )
    return next((sentence for refused, sentence in complaints if refused), None)


def _require_elastic(args: Any) -> None:
    if (sentence := refusal(args)) is not None:
        raise ValueError(sentence)


class ElasticTrainer(Trainer):
    """The part of an elastic Trainer that replaces the Trainer's own: gradients, data, checkpoints and members.

    `run` is that of the job. The constructor takes the arguments of the Trainer.

    Raises:
        ValueError: an argument is incompatible with elastic training. The message says what to do.
    """

    run: Run
    lr_scheduler: Any

    def __init__(self, *positional: Any, **arguments: Any) -> None:
        self._loader: Loader | None = None
        self._feed: StepFeed | None = None
        given = positional[1] if len(positional) > 1 else arguments.get("args")
        if given is not None:  # the Trainer's own errors do not name the way out
            _require_elastic(given)
        super().__init__(*positional, **arguments)
        args: Any = self.args
        _require_elastic(args)  # a subclass may have made or changed them
        use_device(self.run)
        # By themselves the arguments take the first GPU, and count all of the host.
        args.__dict__["_setup_devices"] = self.run.device
        args._n_gpu = int(self.run.device.type == "cuda")  # noqa: SLF001
        show_rank(self.run)
        self.run.after_change(lambda _: self.show_rank())
        self._unwrap = self.accelerator.unwrap_model
        self.accelerator.unwrap_model = self._unwrap_elastic
        for shows in (ProgressCallback, PrinterCallback):  # of the rank that was the first at the start
            self.remove_callback(shows)
        self.callback_handler.callbacks.insert(0, _StepCallback(self))

    @property
    def feed(self) -> StepFeed:
        """The steps of the training."""
        assert self._feed is not None, "only within train()"
        return self._feed

    def train(self, resume_from_checkpoint: Any = None, **arguments: Any) -> Any:
        """Train the steps that are left after Headway's newest checkpoint.

        Raises:
            ValueError: `resume_from_checkpoint` is given, or the training was begun before.
        """
        if resume_from_checkpoint:
            raise ValueError(
                "Headway continues from its own checkpoints: call train() without resume_from_checkpoint"
            )
        if self._loader is not None:
            raise ValueError("this training was begun before; a job trains once")
        return super().train(**arguments)

    # Parts of the Trainer's loop

    def _move_model_to_device(self, model: Any, device: Any) -> None:  # noqa: ARG002  # the first GPU of the host
        super()._move_model_to_device(model, self.run.device)

    def get_train_dataloader(self) -> Any:
        """Return the training data, of which the Trainer uses only the number of steps.

        Raises:
            ValueError: the data have an order of their own.
        """
        args, own = self.args, super().get_train_dataloader()
        sampler = getattr(own.batch_sampler, "sampler", None)
        if not isinstance(sampler, RandomSampler):
            raise ValueError(  # noqa: TRY004  # not the type of an argument
                f"the training data come in the order of a {type(sampler).__name__}, but Headway shuffles them itself: leave "
                "out train_sampling_strategy and samplers of your own"
            )
        local = args.per_device_train_batch_size
        self._loader = self.run.loader(
            own.dataset,
            global_batch=local * args.gradient_accumulation_steps,
            max_local_batch=local,
            seed=args.seed if args.data_seed is None else args.data_seed,
            num_workers=args.dataloader_num_workers,
            collate_fn=own.collate_fn,
        )
        args.gradient_accumulation_steps = 1  # Headway accumulates within the one batch of a step
        return _StepData(self._loader)

    def get_total_train_batch_size(self, args: Any) -> int:  # noqa: ARG002  # the run knows it
        """Return the samples of a step."""
        assert self._loader is not None
        return self._loader.batching.bounds.global_batch

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Return the Trainer's values, without a limit of epochs: training ends by its steps."""
        _, *others = super().set_initial_training_values(args, dataloader)
        return sys.maxsize, *others

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume: Any) -> tuple[Any, Any]:
        model, data = super()._prepare_for_training(max_steps, train_dataloader, resume)
        optimizer = self.optimizer.optimizer  # the Trainer keeps Accelerate's wrapper
        own = _CallbackStates(self)
        self.model_wrapped, _, self.lr_scheduler, _ = self.run.prepare(
            model, optimizer, self.lr_scheduler, own
        )
        self.callback_handler.lr_scheduler = self.lr_scheduler
        self._feed = self.run.step_feed(max_steps)
        return self.model_wrapped, data

    def _run_epoch(self, **arguments: Any) -> None:
        """Train until the data of the epoch end. The steps come from the feed instead of from the Trainer's counts."""
        self._next_step()
        if not self.feed.over:
            super()._run_epoch(**{**arguments, "num_update_steps_per_epoch": sys.maxsize})

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], None]:  # noqa: ARG002
        """Return all batches of the next step as one batch. Members may change here, and the process may end."""
        self._next_step()
        return ([] if self.feed.over else [self.feed.batches]), None

    def _next_step(self) -> None:
        """Commit the present step if it was taken, and begin the next one."""
        if self.state.global_step > self.run.steps:
            self.begin_step()

    def begin_step(self) -> None:
        """Commit the present step and begin the next one, and set the Trainer's counts to those of the run."""
        self.feed.advance()
        self.state.global_step = self.run.steps
        if self.feed.over:
            self.control.should_training_stop = True

    def show_rank(self) -> None:
        """Set the rank that the Trainer and Accelerate know."""
        show_rank(self.run)
        self.state.is_local_process_zero = self.state.is_world_process_zero = self.run.is_main

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:  # noqa: ARG002
        """Compute the gradient of the global batch, and return its mean loss over all ranks.

        A loss of the mean over tokens or other items is that of all items of the global batch. If a peer is lost, the
        gradient is computed again with the remaining ranks.
        """
        while not self.feed.over:
            if (loss := self._attempt(model)) is not None:
                return torch.tensor(loss, device=self.args.device)
            self.begin_step()
        # The state of another rank has ended the training. The loop counts one step more, which changes nothing.
        self.state.global_step -= 1
        return torch.zeros((), device=self.args.device)

    def _attempt(self, model: Any) -> float | None:
        """Return the mean loss of the step; None if a peer was lost before its gradient was complete."""
        items = self._items()
        if items is not None and (items := self.feed.total(items)) is None:
            return None
        loss = 0.0
        for batch, share in self.feed.take():
            divisor = None
            if items is not None:
                # Headway weighs a batch by its share of the samples. A sum over this many items becomes its part of the mean.
                divisor = torch.tensor(max(items, 1.0) * (share or 1.0), device=self.args.device)
            loss += share * super().training_step(model, batch, divisor).item()
        whole = self.feed.total(loss)
        return whole if self.feed.accept() else None

    def _items(self) -> float | None:
        """Return the items of this rank's samples, such as tokens, over which the loss is a mean; None: over samples."""
        items = 0.0
        for batch, share in zip(self.feed.batches, self.feed.shares, strict=True):
            count = self._get_num_items_in_batch([batch], self.args.device)
            if count is None:
                return None
            items += float(count) if share else 0.0
        return items

    def floating_point_ops(self, inputs: Any) -> int:
        """Return the operations of one batch, or of all batches of this rank's part of a step."""
        batches = inputs if isinstance(inputs, list) else [inputs]
        return sum(super(ElasticTrainer, self).floating_point_ops(batch) for batch in batches)

    def _unwrap_elastic(self, model: Any, *arguments: Any, **named: Any) -> Any:
        return self._unwrap(model.module if isinstance(model, ElasticModule) else model, *arguments, **named)


class _StepData:
    """The training data as the Trainer counts them: one batch for each optimizer step of an epoch."""

    def __init__(self, loader: Loader) -> None:
        self.dataset = range(loader.dataset_samples)
        self._steps = loader.steps_per_epoch

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        return iter(())  # the steps come from the feed


class _CallbackStates:
    """States of the Trainer's callbacks, such as the patience of early stopping, and the best metric so far."""

    def __init__(self, trainer: ElasticTrainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """Return the states in the order of the callbacks."""
        best = self._trainer.state.best_metric
        states = [dict(callback.state()["attributes"]) for callback in self._exportable()]
        return {"best_metric": None if best is None else float(best), "callbacks": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the states of callbacks in the same order."""
        self._trainer.state.best_metric = state_dict["best_metric"]
        for callback, attributes in zip(self._exportable(), state_dict["callbacks"], strict=True):
            for name, value in attributes.items():
                setattr(callback, name, value)

    def _exportable(self) -> list[Any]:
        return [one for one in self._trainer.callback_handler.callbacks if isinstance(one, ExportableState)]


class _StepCallback(TrainerCallback):
    """Callback that joins the training, ends epochs with the data, reports values, and finishes the training."""

    def __init__(self, trainer: ElasticTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Join the training and begin its first step; a new member waits here for its peers."""
        self._trainer.begin_step()
        self._trainer.show_rank()
        state.num_train_epochs = math.ceil(
            state.max_steps / len(self._trainer.callback_handler.train_dataloader)
        )
        state.epoch = self._trainer.feed.epoch
        # Averages of the log begin here.
        self._trainer._initial_global_step = self._trainer._globalstep_last_logged = state.global_step  # noqa: SLF001

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Set the epoch, and end it with its data."""
        feed = self._trainer.feed
        state.epoch = feed.epoch
        control.should_epoch_stop = control.should_epoch_stop or feed.ends_epoch

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Leave the evaluation out of the job's speed."""
        if self._trainer.is_in_train:
            self._trainer.feed.evaluated()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Report the numbers that the Trainer logs."""
        values = {
            name: float(value)
            for name, value in (logs or {}).items()
            if name != "epoch" and isinstance(value, int | float)
        }
        if values:
            self._trainer.run.report(**values)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Save the result in a checkpoint and end the training, also if a callback stopped it early."""
        if state.global_step >= state.max_steps and not self._trainer.feed.over:
            self._trainer.begin_step()
        self._trainer.feed.finish()
