"""Elastic training with PyTorch Lightning: `elastic_trainer` makes a `Trainer` for a job of changing size.

    run = headway.init()
    trainer = elastic_trainer(run, max_epochs=20)
    trainer.fit(LitModel(), run.loader(dataset, global_batch=64), DataLoader(test_data))

Lightning sees a single device. Headway averages gradients over the present ranks, distributes the samples,
saves checkpoints and changes members between two steps: `docs/guides/lightning-and-transformers.md`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only

from headway.train import Run
from headway.train.host.output import warn
from headway.train.loader import Loader

__all__ = ["ElasticStrategy", "HeadwayLogger", "elastic_trainer"]


def elastic_trainer(run: Run, **arguments: Any) -> pl.Trainer:
    """Return a `Trainer` whose `fit` is elastic. Give `fit` a loader that `run.loader` made.

    `arguments` are the Trainer's, such as `max_epochs`. Headway sets the arguments that choose devices and
    their number. By default the only logger is the one for `run.report`, and Lightning makes no checkpoints
    and shows no progress bar.

    Raises:
        ValueError: an argument is incompatible with elastic training. The message says what to do.
    """
    taken = {"strategy", "devices", "num_nodes", "use_distributed_sampler"} & arguments.keys()
    if taken:
        raise ValueError(
            f"{', '.join(sorted(taken))}: decided by Headway; leave it out of elastic_trainer(...)"
        )
    controller = _LoopController(run)
    return pl.Trainer(
        strategy=ElasticStrategy(run),
        accelerator="gpu" if run.device.type == "cuda" else "cpu",
        devices=[run.device.index or 0] if run.device.type == "cuda" else 1,
        use_distributed_sampler=False,
        logger=[HeadwayLogger(run), *_as_list(arguments.pop("logger", None))],
        callbacks=[controller, *_as_list(arguments.pop("callbacks", None))],
        **{"enable_checkpointing": False, "enable_progress_bar": False, **arguments},
    )


def _as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given] if given else []


def refusal(trainer: pl.Trainer, module: pl.LightningModule, optimizers: int) -> str | None:
    """Return the reason why this cannot be trained elastically, with the remedy; None if it can."""
    complaints = (
        (
            trainer.max_epochs in (None, -1) and trainer.max_steps == -1,
            "elastic training needs an end: give max_epochs or max_steps",
        ),
        (
            trainer.fit_loop.min_steps is not None,
            "min_steps is not followed: leave it out, and give max_epochs or max_steps",
        ),
        (
            trainer.accumulate_grad_batches != 1,
            "accumulate_grad_batches must stay 1: accumulation follows from global_batch and max_local_batch of run.loader(...)",
        ),
        (
            not module.automatic_optimization and trainer.max_steps != -1,
            "max_steps counts the steps of every optimizer in manual optimization: give max_epochs",
        ),
        (
            optimizers > 1 and getattr(trainer.precision_plugin, "scaler", None) is not None,
            "16-mixed scales the losses of one optimizer: give precision='bf16-mixed' for several",
        ),
        (
            trainer.limit_train_batches != 1.0
            or trainer.overfit_batches
            or trainer.reload_dataloaders_every_n_epochs,
            "limit_train_batches, overfit_batches and reload_dataloaders_every_n_epochs skip samples of an epoch: leave them out",
        ),
    )
    return next((sentence for refused, sentence in complaints if refused), None)


class ElasticStrategy(SingleDeviceStrategy):
    """A single-device strategy over Headway's gradients, loader and checkpoints.

    Args:
        run: the result of `headway.init()`.
    """

    strategy_name = "headway"

    def __init__(self, run: Run) -> None:
        super().__init__(device=run.device)
        self._run = run
        self.data: _Data | None = None
        """Training data, set when `fit` receives them."""

    @property
    def is_global_zero(self) -> bool:
        """True if this process is rank 0 now."""
        return self._run.is_main

    def setup(self, trainer: pl.Trainer) -> None:
        """Make the optimizer, and continue from the newest checkpoint.

        Raises:
            ValueError: the module or its Trainer cannot be trained elastically.
        """
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if (sentence := refusal(trainer, self.lightning_module, len(self.optimizers))) is not None:
            raise ValueError(sentence)
        schedules = [config.scheduler for config in self.lr_scheduler_configs]
        # The scale is the same on every rank, and the scaler judges the sum of their gradients: all skip the same steps.
        scalers = [] if self._scaler is None else [self._scaler]
        model, *prepared = self._run.prepare(self.lightning_module, *self.optimizers, *scalers, *schedules)
        del prepared[: len(self.optimizers)]  # the same objects
        if scalers:
            self.precision_plugin.scaler = prepared.pop(0)
        self.model = model  # training steps use the wrapper, as with DDP
        for config, schedule in zip(self.lr_scheduler_configs, prepared, strict=True):
            config.scheduler = schedule

    @property
    def _scaler(self) -> Any:
        """The `GradScaler` of the precision 16-mixed; None with another precision."""
        return getattr(self.precision_plugin, "scaler", None)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Keep the training data empty until training begins."""
        if not isinstance(dataloader, Loader):
            return dataloader
        self.data = _Data(dataloader)
        return self.data

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        """Run the module's step. In manual optimization each backward pass in it meets the peers, rather than the step."""
        if self.lightning_module.automatic_optimization:
            return super().training_step(*arguments, **named)
        # A pass for the buffers of rank 0, which must not change between a forward pass and its backward pass.
        self._pass_through_model(torch.zeros(()))
        with self.precision_plugin.train_step_context():
            return self.lightning_module.training_step(*arguments, **named)

    def backward(
        self, closure_loss: torch.Tensor, optimizer: Any, *arguments: Any, **named: Any
    ) -> torch.Tensor:
        """Compute gradients, which the model averages over the peers only behind a forward pass of its own."""
        if not self.lightning_module.automatic_optimization:
            closure_loss = self._pass_through_model(closure_loss)
        return super().backward(closure_loss, optimizer, *arguments, **named)  # type: ignore[no-any-return]

    def _pass_through_model(self, value: torch.Tensor) -> torch.Tensor:
        """Return a value as the output of the model's forward pass, without the forward pass of the module."""
        assert self.model is not None
        module, forward = self.lightning_module, self.lightning_module.forward
        module.forward = lambda it: it  # as Lightning does to send a step through a wrapper
        try:
            passed: torch.Tensor = self.model(value)
        finally:
            module.forward = forward
        return passed

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **arguments: Any
    ) -> Any:
        """Compute the gradient before the optimizer's step: a peer lost within the step would be noticed too late."""
        loss, scaler = closure(), self._scaler
        if not self._run.accumulating:
            if scaler is not None:
                scaler.unscale_(optimizer)
            self.precision_plugin._after_closure(model or self.lightning_module, optimizer)  # noqa: SLF001  # hooks, clipping
        if scaler is None:
            optimizer.step(**arguments)
        else:
            scaler.step(optimizer, **arguments)
            scaler.update()
        return loss

    def validation_step(self, *arguments: Any, **named: Any) -> Any:
        """Call the module itself, not the wrapper: validation has no gradients and meets no peers."""
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*arguments, **named)


class HeadwayLogger(pl.loggers.Logger):
    """A logger that sends a module's values to `run.report`: to the log, the service and the job's trackers."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    @property
    def name(self) -> str:
        """Name under which Lightning shows the logger."""
        return "headway"

    @property
    def version(self) -> str:
        """The generation of the job."""
        return str(self._run.generation)

    def log_hyperparams(self, *arguments: Any, **named: Any) -> None:
        """Ignore hyperparameters: the job file and the bundle hold them."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:  # noqa: ARG002  # the run knows it
        """Report the values except the epoch, which every report contains."""
        values = {name: value for name, value in metrics.items() if name != "epoch"}
        if values:
            self._run.report(**values)


class _Data:
    """The loader of `run.loader`, empty until training begins, because Lightning requests a batch long before."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.begun = False

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader) if self.begun else iter(())


class _SingleFetcher(_DataFetcher):
    """Batches fetched one at a time. Lightning's fetcher fetches one ahead, before the present step is over."""

    def __init__(self, run: Run, loader: Loader) -> None:
        super().__init__()
        self._run = run
        self._loader = loader
        self._ahead: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        self._ahead = []
        return super().__iter__()  # type: ignore[no-any-return]

    def __next__(self) -> Any:
        batch = self._ahead.pop() if self._ahead else super().__next__()
        self.done = self._loader.ends_epoch
        return batch

    def advance(self) -> None:
        """Commit the step if this pass was its last one. Members may change here, and the process may end."""
        steps = self._run.steps
        try:
            self._ahead = [super().__next__()]
            self.done = False
        except StopIteration:
            self.done = True
        # Values logged now do not belong to the batch fetched already.
        self._loader.within_step = steps == self._run.steps


class _LoopController(pl.Callback):
    """Callback that makes Lightning's loops follow the remaining epochs and commits each step as it ends."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._on_sigterm = signal.getsignal(signal.SIGTERM)
        self._epochs: Iterator[int] = iter(())
        self._fetcher: _SingleFetcher | None = None
        self._begun = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """Join the training; a new member waits here for its peers.

        Raises:
            ValueError: the training data do not come from `run.loader`.
        """
        data = trainer.strategy.data
        if data is None:
            raise ValueError(
                "the training data do not come from Headway: give trainer.fit(...) the result of run.loader(...)"
            )
        # Lightning's own handler would end this rank alone, without its peers.
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._epochs = self._remaining_epochs(trainer, data.loader)
        epoch = next(self._epochs, None)
        if epoch is None:  # the checkpoint is from the end of training
            epoch = int(self._run.progress)
            self._stop(trainer)
        progress = trainer.fit_loop.epoch_progress.current
        progress.ready = progress.started = progress.processed = progress.completed = epoch
        data.begun = True
        self._fetcher = _SingleFetcher(self._run, data.loader)
        self._fetcher.setup(trainer.fit_loop._combined_loader)  # noqa: SLF001  # Lightning offers no other access
        trainer.fit_loop._data_fetcher = self._fetcher  # noqa: SLF001
        iter(self._fetcher)
        self._update_counts(trainer)
        self._show_rank(trainer)
        self._run.after_change(lambda _: self._show_rank(trainer))

    def _remaining_epochs(self, trainer: pl.Trainer, loader: Loader) -> Iterator[int]:
        """Return the epochs to the first of the Trainer's limits. In an adaptive job the run alone decides the end."""
        most_epochs, most_steps = trainer.max_epochs, trainer.max_steps
        if loader.batching.adaptive:
            # Larger batches need more epochs for the same progress, and fewer steps.
            trainer.fit_loop.max_epochs = trainer.fit_loop.epoch_loop.max_steps = -1
        if most_steps != -1 and (most_epochs == -1 or most_steps < most_epochs * loader.steps_per_epoch):
            return self._run.epochs_of_steps(most_steps)
        return self._run.epochs(most_epochs)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """End the previous epoch here, because the script's own actions at the end of an epoch come before this call."""
        if self._begun:
            epoch = next(self._epochs)
            progress = trainer.fit_loop.epoch_progress.current
            progress.started = progress.processed = progress.completed = epoch
            progress.ready = epoch + 1
        self._begun = True

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Commit the step if this was its last batch."""
        assert self._fetcher is not None
        self._fetcher.advance()
        trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = self._fetcher.done
        self._update_counts(trainer)
        if self._run.finished:
            self._stop(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """End the last epoch with a checkpoint of the result."""
        left = next(self._epochs, None)
        if left is not None:
            warn(f"training ended before epoch {left} and its limits, so its result is in no checkpoint")

    def _stop(self, trainer: pl.Trainer) -> None:
        """Let Lightning's loops end, because the run has."""
        trainer.fit_loop.min_epochs = None  # which counts epochs as read
        trainer.should_stop = True

    def _update_counts(self, trainer: pl.Trainer) -> None:
        """Set Lightning's step counts to those of the run, which peers and membership changes may alter."""
        loop = trainer.fit_loop.epoch_loop
        for progress in (
            loop.automatic_optimization.optim_progress.optimizer.step,
            loop.manual_optimization.optim_step_progress,
        ):
            progress.total.ready = progress.total.completed = self._run.steps

    def _show_rank(self, trainer: pl.Trainer) -> None:
        """Set the rank that Lightning knows."""
        trainer.strategy.global_rank = rank_zero_only.rank = self._run.rank
