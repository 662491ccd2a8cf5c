"""The run: what `headway.init()` returns."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headway.contract import runtime
from headway.train.checkpoint import Checkpoints, Interval, StaleGeneration, read_state
from headway.train.control import Messenger, StopRequest
from headway.train.environment import RankEnvironment, read_environment
from headway.train.gradients import GradientWeights
from headway.train.group import Group
from headway.train.ledger import Ledger, complete_ledger
from headway.train.loader import ElasticLoader
from headway.train.position import Position
from headway.train.progress import ProgressMeter
from headway.train.storage import open_storage

Sample = TypeVar("Sample")
_GROUP_TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for its peers. The agent notices a dead peer at once and ends the others."""


def init() -> Run:
    """Join the job that this process is a rank of; outside Headway, an ordinary single-process run."""
    return Run(read_environment(os.environ))


class Run:
    """One process's part in a training run.

    `rank` and `world_size` are those of this generation; they change with the next one, so a script
    must not keep them in its state.
    """

    def __init__(self, environment: RankEnvironment) -> None:
        self.rank = environment.rank
        self.world_size = environment.world_size
        self.generation = environment.generation
        self.device = _device(environment)
        self._environment = environment
        self._messenger = Messenger(environment)
        self._stop = StopRequest()
        if environment.control is not None or environment.checkpoint_uri is not None:
            self._stop.listen()
        self._messenger.send(runtime.Hello)
        if environment.distributed and not dist.is_initialized():
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=_GROUP_TIMEOUT)
        self._group = Group(distributed=environment.distributed)
        self._checkpoints = (
            Checkpoints(
                open_storage(environment.checkpoint_uri),
                generation=environment.generation,
                keep=environment.checkpoint_keep,
            )
            if environment.checkpoint_uri is not None
            else None
        )
        self._interval = Interval(environment.checkpoint_every_s)
        self._position = Position()
        self._ledger = Ledger()
        """Of the current epoch, over all ranks, up to the last merge."""
        self._meter = ProgressMeter(self._messenger)
        self._loader: ElasticLoader[Any] | None = None
        self._epochs: int | None = None
        self._model: nn.Module | None = None
        self._stateful: list[Any] = []
        self._weights: GradientWeights | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which speaks for all."""
        return self.rank == 0

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer, *more: Any) -> tuple[Any, ...]:
        """Make the replicas equal and hand back model, optimizer and `more` in this order.

        The newest whole checkpoint is loaded, if there is one. `more` are objects with `state_dict` and
        `load_state_dict`, such as a learning-rate scheduler; they are saved and restored as well.

        Raises:
            RuntimeError: called twice, or the checkpoint does not fit the model.
        """
        if self._model is not None:
            raise RuntimeError("prepare() was called twice; one run trains one model.")
        model.to(self.device)
        self._model = model
        self._stateful = [model, optimizer, *more]
        self._restore()
        wrapped = self._wrap(model)
        self._weights = GradientWeights(wrapped, optimizer)
        return (wrapped, optimizer, *more)

    def _wrap(self, model: nn.Module) -> nn.Module:
        if not self._environment.distributed or self.world_size == 1:
            return model
        return DistributedDataParallel(
            model, device_ids=[self.device] if self.device.type == "cuda" else None
        )

    def loader(
        self,
        dataset: Sequence[Sample] | torch.utils.data.Dataset[Sample],
        *,
        global_batch: int,
        max_local_batch: int | None = None,
        max_global_batch: int | None = None,
        seed: int = 0,
        collate: Callable[[list[Sample]], Any] | None = None,
        num_workers: int = 0,
    ) -> ElasticLoader[Sample]:
        """The loader of the training data: every sample once an epoch, at any number of ranks.

        `global_batch` samples make one optimizer step, whatever the number of ranks; the job file's
        `batch.global` overrides it. A rank passes at most `max_local_batch` samples at once and
        accumulates gradients beyond. `max_global_batch` bounds an adaptive batch, which is off by
        default.

        Raises:
            ValueError: a batch that is not positive, an empty dataset, or bounds that contradict.
            RuntimeError: called twice.
        """
        if self._loader is not None:
            raise RuntimeError("a run has one training loader; use a plain DataLoader to evaluate.")
        self._loader = ElasticLoader(
            dataset,
            steps=self,
            rank=self.rank,
            world_size=self.world_size,
            device=self.device,
            global_batch=self._environment.global_batch or global_batch,
            max_global_batch=max_global_batch,
            max_local=max_local_batch,
            seed=seed,
            collate=collate,
            num_workers=num_workers,
        )
        return self._loader

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that remain of `count`. After the last one the final checkpoint is written."""
        self._epochs = count
        while self._position.epoch < count:
            epoch = self._position.epoch
            yield epoch
            if self._position.epoch == epoch:  # the script left the epoch early
                self._position, self._ledger = Position(epoch + 1), Ledger()
        self._save_together()
        self._meter.flush()
        self._messenger.send(runtime.Completed, samples=self._samples)

    def report(self, **metrics: float) -> None:
        """Show values to people: in `headway describe`, in plots, in the log. They steer nothing."""
        if not self.is_main:
            return
        values = {name: float(value) for name, value in metrics.items()}
        epoch = max(0, self._position.epoch - (self._position.samples == 0))
        self._messenger.send(runtime.Metrics, epoch=epoch, samples=self._samples, values=values)
        shown = " ".join(f"{name}={value:.6g}" for name, value in values.items())
        print(f"[headway] epoch {epoch} samples {self._samples} {shown}", flush=True)  # noqa: T201

    @property
    def position(self) -> Position:
        """What is committed."""
        return self._position

    @property
    def _samples(self) -> int:
        """Committed samples since the job began."""
        per_epoch = len(self._loader.dataset) if self._loader is not None else 0  # type: ignore[arg-type]
        return self._position.epoch * per_epoch + self._position.samples

    @property
    def weights(self) -> GradientWeights:
        """The weights of the pass at hand. Raises RuntimeError before `prepare`."""
        if self._weights is None:
            raise RuntimeError("call run.prepare(model, optimizer) before the training loop.")
        return self._weights

    def begin_step(self) -> None:
        """A step begins: ask all ranks, while they compute, whether to stop or checkpoint after it."""
        self._meter.begin_step()
        due = self.is_main and self._checkpoints is not None and self._interval.is_due()
        self._group.ask(stop=self._stop.requested, checkpoint=due)

    def commit_step(
        self, samples: int, mine: Ledger, global_batch: int, local_batch: int, passes: int
    ) -> None:
        """The optimizer has stepped over `samples`: they are committed. `mine` is this rank's part.

        This is the boundary between two steps, where a rank may leave: every rank comes to the same
        answer at the same step.
        """
        self._position = Position(self._position.epoch, self._position.samples + samples)
        self._group.pend(mine)
        if self.is_main:
            self._meter.end_step(
                epoch=self._position.epoch,
                samples=self._samples,
                total_samples=self._total_samples(),
                global_batch=global_batch,
                local_batch=local_batch,
                accumulation=passes,
            )
        stop, checkpoint = self._group.answer()
        if stop:
            self._leave()
        if checkpoint:
            self._save_together()

    def end_epoch(self) -> None:
        """Every sample of the epoch is committed: audit it, and begin the next."""
        assert self._loader is not None
        samples = len(self._loader.dataset)  # type: ignore[arg-type]
        ledger = self._merge_ledger()
        if self.is_main:
            self._messenger.send(
                runtime.EpochClosed,
                epoch=self._position.epoch,
                samples_seen=ledger.count,
                dataset_samples=samples,
                exactly_once=ledger == complete_ledger(samples),
            )
        self._position, self._ledger = Position(self._position.epoch + 1), Ledger()

    def abandon_step(self) -> None:
        """The script left the loop in the middle of a step: nothing of it is committed."""
        self._group.answer()

    def _total_samples(self) -> int | None:
        if self._epochs is None or self._loader is None:
            return None
        return self._epochs * len(self._loader.dataset)  # type: ignore[arg-type]

    def _merge_ledger(self) -> Ledger:
        self._ledger = self._ledger.plus(self._group.merge())
        return self._ledger

    def _leave(self) -> None:
        """Checkpoint, say so, and end this process. All ranks do it after the same step."""
        self._save_together()
        self._meter.flush()
        self._group.barrier()
        self._messenger.send(runtime.Stopped, samples=self._samples)
        _exit(runtime.EXIT_STOPPED)

    def _save_together(self) -> None:
        """Every rank adds to the ledger; rank 0 writes."""
        if self._checkpoints is None or self._model is None:
            return
        ledger = self._merge_ledger()
        if not self.is_main:
            return
        began = time.monotonic()
        state = {
            "objects": [one.state_dict() for one in self._stateful],
            "epoch": self._position.epoch,
            "samples": self._position.samples,
            "ledger": ledger.as_list(),
        }
        try:
            manifest = self._checkpoints.save(state, samples=self._samples)
        except StaleGeneration as error:
            print(f"headway: {error}", file=sys.stderr)  # noqa: T201
            _exit(runtime.EXIT_STOPPED)
        cost_s = time.monotonic() - began
        self._interval.saved(cost_s)
        self._messenger.send(
            runtime.Checkpointed,
            uri=f"{self._environment.checkpoint_uri}/{manifest.folder}",
            samples=manifest.samples,
            size_bytes=manifest.size_bytes,
            save_s=cost_s,
        )

    def _restore(self) -> None:
        """Rank 0 reads the newest whole checkpoint; the others get its bytes from rank 0."""
        if self._checkpoints is None:
            return
        found = self._checkpoints.load_bytes() if self.is_main else None
        data = self._group.broadcast(found[1] if found is not None else b"")
        if not data:
            return
        state = read_state(data)
        if len(state["objects"]) != len(self._stateful):
            raise RuntimeError(
                f"the checkpoint holds {len(state['objects'])} objects and prepare() got "
                f"{len(self._stateful)}; pass the same ones as in the run that wrote it."
            )
        for one, saved in zip(self._stateful, state["objects"], strict=True):
            one.load_state_dict(saved)
        self._position = Position(state["epoch"], state["samples"])
        self._ledger = Ledger.from_list(state["ledger"])
        if found is not None:
            manifest = found[0]
            self._messenger.send(
                runtime.Restored, samples=manifest.samples, from_generation=manifest.generation
            )


def _device(environment: RankEnvironment) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", environment.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _exit(code: int) -> None:
    """End now: an interpreter with live process groups may die while it tidies up."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
