"""PyTorch Lightning on ranks that come and go: `elastic_trainer` makes a `Trainer` that trains as a loop of `headway.init()` does.

    run = headway.init()
    trainer = elastic_trainer(run, max_epochs=20)
    trainer.fit(LitModel(), run.loader(dataset, global_batch=64), DataLoader(test_data))

Lightning trains on one device, as far as it knows. Beneath it Headway averages gradients over the ranks of the moment, deals
out the samples, keeps the checkpoints and decides between two steps who is a member: `docs/guides/lightning-and-transformers.md`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only

from headway.train import Run
from headway.train.loader import Loader
from headway.train.output import complain

__all__ = ["ElasticStrategy", "HeadwayLogger", "elastic_trainer"]


def elastic_trainer(run: Run, **arguments: Any) -> pl.Trainer:
    """A `Trainer` whose `fit` is elastic. Give `fit` a loader that `run.loader` made.

    `arguments` are the Trainer's, `max_epochs` among them; those that say where and over how many devices to train are
    Headway's. Without others of its kind, the logger is one to `run.report`, and there are no checkpoints beside
    Headway's and no progress bar.

    Raises:
        ValueError: an argument cannot be had together with ranks that come and go. The message says what to do.
    """
    taken = {"strategy", "devices", "num_nodes", "use_distributed_sampler"} & arguments.keys()
    if taken:
        raise ValueError(
            f"{', '.join(sorted(taken))}: decided by Headway; leave it out of elastic_trainer(...)"
        )
    loggers = arguments.pop("logger", None) or []
    pace = _Pace(run)
    return pl.Trainer(
        strategy=ElasticStrategy(run),
        accelerator="gpu" if run.device.type == "cuda" else "cpu",
        devices=[run.device.index or 0] if run.device.type == "cuda" else 1,
        use_distributed_sampler=False,
        logger=[HeadwayLogger(run), *(loggers if isinstance(loggers, list | tuple) else [loggers])],
        callbacks=[pace, *_listed(arguments.pop("callbacks", None))],
        **{"enable_checkpointing": False, "enable_progress_bar": False, **arguments},
    )


def _listed(callbacks: Any) -> list[Any]:
    return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []


def refusal(trainer: pl.Trainer, module: pl.LightningModule, optimizers: int) -> str | None:
    """Why this cannot be trained elastically, as a sentence that says what to do; None if it can."""
    complaints = (
        (
            trainer.max_epochs in (None, -1)
            or trainer.max_steps != -1
            or trainer.fit_loop.min_steps is not None,
            "the length of an elastic training is in epochs: give max_epochs, and neither max_steps nor min_steps",
        ),
        (
            trainer.accumulate_grad_batches != 1,
            "accumulate_grad_batches must stay 1: the global batch of run.loader(...) decides, with max_local_batch",
        ),
        (
            not module.automatic_optimization or optimizers != 1,
            "one optimizer, stepped by Lightning (automatic_optimization), can be trained elastically",
        ),
        (
            trainer.precision == "16-mixed",
            "precision 16-mixed scales losses, which does not go with sums of gradients over ranks: use bf16-mixed",
        ),
        (
            trainer.limit_train_batches != 1.0
            or trainer.overfit_batches
            or trainer.reload_dataloaders_every_n_epochs,
            "limit_train_batches, overfit_batches and reload_dataloaders_every_n_epochs leave out samples of an epoch",
        ),
    )
    return next((sentence for refused, sentence in complaints if refused), None)


class ElasticStrategy(SingleDeviceStrategy):
    """One device, and Headway's gradients, loader and checkpoints beneath it.

    Args:
        run: what `headway.init()` returned.
    """

    strategy_name = "headway"

    def __init__(self, run: Run) -> None:
        super().__init__(device=run.device)
        self._run = run
        self.data: _Data | None = None
        """The training data, once `fit` has them."""

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0 now."""
        return self._run.is_main

    def setup(self, trainer: pl.Trainer) -> None:
        """Make the optimizer, and continue from the newest checkpoint.

        Raises:
            ValueError: it cannot be trained elastically.
        """
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if (sentence := refusal(trainer, self.lightning_module, len(self.optimizers))) is not None:
            raise ValueError(sentence)
        schedules = [config.scheduler for config in self.lr_scheduler_configs]
        model, _, *prepared = self._run.prepare(self.lightning_module, self.optimizers[0], *schedules)
        self.model = model  # training steps go through it, as through DDP
        for config, schedule in zip(self.lr_scheduler_configs, prepared, strict=True):
            config.scheduler = schedule

    def process_dataloader(self, dataloader: Any) -> Any:
        """Have the training data wait for the training."""
        if not isinstance(dataloader, Loader):
            return dataloader
        self.data = _Data(dataloader)
        return self.data

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **arguments: Any
    ) -> Any:
        """The gradient first, then the step: with the gradient within the step a lost peer would be noticed too late."""
        loss = closure()
        if not self._run.accumulating:
            self.precision_plugin._after_closure(model or self.lightning_module, optimizer)  # noqa: SLF001  # hooks, clipping
        optimizer.step(**arguments)
        return loss

    def validation_step(self, *arguments: Any, **named: Any) -> Any:
        """By the module itself: no gradients, nobody to meet."""
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*arguments, **named)


class HeadwayLogger(pl.loggers.Logger):
    """What a module logs goes to `run.report`: into the log, to the service and to the job's trackers."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    @property
    def name(self) -> str:
        """Of the logger."""
        return "headway"

    @property
    def version(self) -> str:
        """The generation of the job."""
        return str(self._run.generation)

    def log_hyperparams(self, *arguments: Any, **named: Any) -> None:
        """They are the script's: the job file and the bundle have them."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:  # noqa: ARG002  # the run knows it
        """Report them, but for the epoch, which every report has."""
        values = {name: value for name, value in metrics.items() if name != "epoch"}
        if values:
            self._run.report(**values)


class _Data:
    """What `run.loader` made, empty until training has begun: Lightning asks for a first batch long before."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.begun = False

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader) if self.begun else iter(())


class _OneByOne(_DataFetcher):
    """Batches as training asks for them. Lightning's own fetches one ahead, and so before the step in work is over."""

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

    def go_on(self) -> None:
        """A pass is over, and the step if that was its last one: commit it. Members may change here, and the process may
        end.
        """
        steps = self._run.steps
        try:
            self._ahead = [super().__next__()]
            self.done = False
        except StopIteration:
            self.done = True
        # What is logged now is not of the batch that lies ready.
        self._loader.within_step = steps == self._run.steps


class _Pace(pl.Callback):
    """Has Lightning's loops go through the epochs that are left, and commits each step as it ends."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._on_sigterm = signal.getsignal(signal.SIGTERM)
        self._epochs: Iterator[int] = iter(())
        self._fetcher: _OneByOne | None = None
        self._begun = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """Join the training: a newcomer waits here for its peers.

        Raises:
            ValueError: the training data do not come from `run.loader`.
        """
        data = trainer.strategy.data
        if data is None:
            raise ValueError(
                "give trainer.fit(...) the training data as run.loader(dataset, global_batch=...) makes them"
            )
        # Lightning would end this rank alone, without its peers.
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._epochs = self._run.epochs(trainer.max_epochs)
        epoch = next(self._epochs, trainer.max_epochs)
        progress = trainer.fit_loop.epoch_progress.current
        progress.ready = progress.started = progress.processed = progress.completed = epoch
        data.begun = True
        self._fetcher = _OneByOne(self._run, data.loader)
        self._fetcher.setup(trainer.fit_loop._combined_loader)  # noqa: SLF001  # there is no other way to it
        trainer.fit_loop._data_fetcher = self._fetcher  # noqa: SLF001
        iter(self._fetcher)
        self._follow(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """The epoch before is over, with all that the script does after it."""
        if self._begun:
            epoch = next(self._epochs)
            progress = trainer.fit_loop.epoch_progress.current
            progress.ready, progress.started, progress.processed, progress.completed = (
                epoch + 1,
                epoch,
                epoch,
                epoch,
            )
        self._begun = True

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Commit the step, if this was the last batch of it."""
        assert self._fetcher is not None
        self._fetcher.go_on()
        trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = self._fetcher.done
        self._follow(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """The last epoch is over, with a checkpoint of it."""
        left = next(self._epochs, None)
        if left is not None:
            complain(
                f"training was left before epoch {left} of {trainer.max_epochs}: no checkpoint was made of its end"
            )

    def _follow(self, trainer: pl.Trainer) -> None:
        """Lightning's own counts, after steps of peers, and its idea of who is rank 0."""
        steps = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
        steps.ready = steps.completed = self._run.steps
        trainer.strategy.global_rank = rank_zero_only.rank = self._run.rank
