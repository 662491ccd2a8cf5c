"""Elastic training with an `Accelerator` of Hugging Face's Accelerate.

    run = elastic_run()
    accelerator = ElasticAccelerator(run)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for epoch in run.epochs(20):
        for batch in loader:

Accelerate sees a single device. Headway averages gradients over the present ranks, distributes the samples, saves
checkpoints and changes members between two steps: `docs/guides/lightning-and-transformers.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler

from headway.integrations.single_process import elastic_run, require_single_process, show_rank, use_device
from headway.train import Run
from headway.train.gradients.module import ElasticModule
from headway.train.loader import Loader

__all__ = ["ElasticAccelerator", "elastic_run"]


class ElasticAccelerator(Accelerator):
    """An `Accelerator` whose `prepare` makes the training elastic.

    A step takes `batch_size` x `gradient_accumulation_steps` samples at any number of ranks, in batches of at most
    `batch_size`, that of the training data's `DataLoader`. `batch.global` and `batch.max_local` of the job file override
    both. The loss must be a mean over the samples of a batch.

    Args:
        run: the result of `elastic_run()`.
        gradient_accumulation_steps: batches of a step on one process.
        arguments: further arguments of `Accelerator`.

    Raises:
        ValueError: the script did not begin with `elastic_run`, or an argument is incompatible with elastic training.
    """

    def __init__(self, run: Run, *, gradient_accumulation_steps: int = 1, **arguments: Any) -> None:
        require_single_process()
        fixed = {
            "gradient_accumulation_plugin", "deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin",
            "parallelism_config", "dataloader_config",
        } & arguments.keys()  # fmt: skip
        if fixed:
            raise ValueError(
                f"{', '.join(sorted(fixed))}: decided by Headway; leave it out of ElasticAccelerator(...), or write the loop "
                "with run.prepare(..., parallelize=...)"
            )
        use_device(run)
        super().__init__(**arguments)
        if self.mixed_precision == "fp16":
            raise ValueError(
                "mixed_precision fp16 scales losses per rank, so gradients of ranks cannot be summed: use bf16"
            )
        self.run = run
        self._batches_of_step = gradient_accumulation_steps
        show_rank(run)
        run.after_change(lambda _: show_rank(run))

    # The rank, which changes with the members

    @property
    def is_main_process(self) -> bool:
        """True if this process is rank 0 now."""
        return self.run.is_main

    @property
    def is_local_main_process(self) -> bool:
        """True if this process is rank 0 now: only one process of a job prints."""
        return self.run.is_main

    @property
    def process_index(self) -> int:
        """The rank of this process."""
        return self.run.rank

    def print(self, *values: Any, **named: Any) -> None:
        """Print the values if this process is rank 0."""
        if self.run.is_main:
            print(*values, **named)  # noqa: T201  # Accelerate's own method

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: Any = None) -> None:
        """Send the numbers among the values to `run.report`, and all values to Accelerate's trackers."""
        numbers = {name: value for name, value in values.items() if name != "epoch" and _is_number(value)}
        if numbers:
            self.run.report(**numbers)
        super().log(values, step, log_kwargs)

    # Training

    def prepare(self, *objects: Any, device_placement: Any = None) -> Any:
        """Return the objects made elastic, in the same order: the model, its optimizer, the training data and the rest.

        The training data are the `DataLoader` that shuffles. Other `DataLoader`s give every rank all samples. Objects
        with `state_dict` and `load_state_dict` belong in Headway's checkpoints.

        Raises:
            ValueError: the model, its optimizer and the training data do not come in one call.
        """
        models = [one for one in objects if isinstance(one, nn.Module)]
        optimizers = [one for one in objects if isinstance(one, Optimizer)]
        if not optimizers:
            return super().prepare(*objects, device_placement=device_placement)
        training = [one for one in objects if isinstance(one, DataLoader) and _shuffles(one)]
        if len(models) != 1 or len(training) != 1:
            raise ValueError(
                "accelerator.prepare(...) needs the model, its optimizer and one DataLoader with shuffle=True in one call, "
                f"and this call has {len(models)} models and {len(training)} such loaders"
            )
        stateful = [
            one for one in objects if one not in models and one is not optimizers[0] and _has_state(one)
        ]
        model = self.prepare_model(models[0])
        prepared = self.run.prepare(model, optimizers[0], *stateful)
        replaced = dict(zip(map(id, [models[0], optimizers[0], *stateful]), prepared, strict=True))
        replaced[id(training[0])] = _ElasticData(self.run, training[0], self._batches_of_step)
        for one in objects:
            if isinstance(one, DataLoader) and one is not training[0]:
                replaced[id(one)] = self.prepare_data_loader(one)
        return tuple(replaced.get(id(one), one) for one in objects)

    def backward(self, loss: torch.Tensor, **arguments: Any) -> None:
        """Compute the gradient of the loss, which Headway weighs by the samples of the batch."""
        loss.backward(**arguments)  # type: ignore[no-untyped-call]

    @property
    def sync_gradients(self) -> bool:
        """True with the last batch of a step."""
        return not self.run.accumulating

    def accumulate(self, *_models: nn.Module) -> AbstractContextManager[None]:
        """Return a context without effect, because Headway accumulates."""
        return nullcontext()

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Clip the gradient once it is that of the whole step, and return its norm; 0 before."""
        if self.run.accumulating:
            return torch.zeros(())
        return super().clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip the values of the gradient once it is that of the whole step."""
        if not self.run.accumulating:
            super().clip_grad_value_(parameters, clip_value)

    def unwrap_model(self, model: Any, *arguments: Any, **named: Any) -> Any:
        """Return the model itself, without the wrapper that averages gradients."""
        return super().unwrap_model(
            model.module if isinstance(model, ElasticModule) else model, *arguments, **named
        )

    # Checkpoints

    def save_state(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse the call, because Headway saves checkpoints.

        Raises:
            ValueError: always.
        """
        raise ValueError(_NO_CHECKPOINTS)

    def load_state(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse the call, because Headway restores checkpoints.

        Raises:
            ValueError: always.
        """
        raise ValueError(_NO_CHECKPOINTS)

    def register_for_checkpointing(self, *_: Any) -> NoReturn:
        """Refuse the call, because Headway saves checkpoints.

        Raises:
            ValueError: always.
        """
        raise ValueError(_NO_CHECKPOINTS)


_NO_CHECKPOINTS = (
    "Headway saves and restores everything that accelerator.prepare(...) got: leave out save_state, load_state and "
    "register_for_checkpointing, and give prepare(...) the objects"
)


class _ElasticData:
    """The training data: batches of `run.loader`, and the number of batches in which the script counts an epoch."""

    def __init__(self, run: Run, own: DataLoader[Any], batches_of_step: int) -> None:
        assert own.batch_size is not None, "a DataLoader with a RandomSampler has one"
        self.dataset = own.dataset
        self.batch_size = own.batch_size
        self._run = run
        self._batches_of_step = batches_of_step
        self._loader: Loader = run.loader(
            own.dataset,
            global_batch=own.batch_size * batches_of_step,
            max_local_batch=own.batch_size,
            seed=0 if own.generator is None else own.generator.initial_seed(),
            num_workers=own.num_workers,
            collate_fn=own.collate_fn,
        )

    def __len__(self) -> int:
        return self._loader.steps_per_epoch * self._batches_of_step

    def __iter__(self) -> Iterator[Any]:
        show_rank(self._run)  # a new member has its rank since the training loop began
        yield from self._loader


def _shuffles(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.sampler, RandomSampler)


def _has_state(one: Any) -> bool:
    return hasattr(one, "state_dict") and hasattr(one, "load_state_dict")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1)
