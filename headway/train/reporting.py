"""Reports of rank 0 about steps and epochs."""

from __future__ import annotations

import time
from dataclasses import asdict, replace

from headway.contract.runtime import (
    BatchChanged,
    Completed,
    EpochClosed,
    FirstStep,
    Progress,
    StandsStill,
)
from headway.train.checkpoint.replica import Audit, Place, Replica
from headway.train.data.batching import Batching
from headway.train.data.goal import TrainingGoal
from headway.train.data.ledger import Ledger
from headway.train.data.sync_watch import SyncWatch
from headway.train.host.output import warn
from headway.train.membership.control import Mailbox
from headway.train.membership.standstill import StepPace
from headway.train.meter import Meter

PROGRESS_EVERY_S = 0.5


class Reporter:
    """Sender of progress at intervals, and of the audit of each epoch."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.goal: TrainingGoal | None = None
        """End of training, once it is known."""
        self.pace = StepPace()
        self._memory: tuple[int, ...] = ()
        self._reported_epoch = -1
        self._mailbox = mailbox
        self._meter = Meter(PROGRESS_EVERY_S)
        self._sync_watch = SyncWatch()
        self._first_of_generation = False

    def first_step(self, place: Place, replica: Replica, *, live: bool) -> None:
        """Report the first step of this process, and the changes of members that its model allows."""
        kind = {"sharded": replica.is_sharded, "replicates": replica.replicates}
        self._mailbox.send(FirstStep, samples=place.samples, live=live, **kind)

    def stepped(self, step_s: float, compute_s: float, *, usual: bool) -> None:
        """Record the time of a step, and the part of it that was not spent waiting for peers. Report the end of a standstill.

        A step that does not represent the `usual` time is not measured. The first step of each generation is not, because
        new members run their slow first pass in it.
        """
        measured = usual and not self._first_of_generation
        stood = self.pace.end(time.monotonic(), step_s if measured else None)
        if stood is not None:
            self._mailbox.send(StandsStill, silent_s=stood.silent_s, usual_s=stood.usual_s, over=True)
        elif measured:
            sync_s = max(0.0, step_s - compute_s)
            self._meter.add(step_s, sync_s)
            self._sync_watch.observe(sync_s)
        if usual:
            self._first_of_generation = False

    def use_memory(self, replica: Replica, peak_bytes: int, device_bytes: int | None) -> None:
        """Record the memory that a step of a sharded model has used on an accelerator with `device_bytes`."""
        if replica.shards and device_bytes and peak_bytes > max(self._memory[:1], default=0):
            self._memory = (peak_bytes, replica.shard_bytes, device_bytes, replica.shards)

    def forget(self) -> None:
        """Discard the measurements after a membership change, because they do not describe later steps."""
        self._meter = Meter(PROGRESS_EVERY_S)
        self._sync_watch.forget()
        self._memory = ()
        self._first_of_generation = True

    def due(self) -> bool:
        """Return True if a progress report is due."""
        return self._meter.due(time.monotonic())

    def progress(self, place: Place, batching: Batching, *, is_main: bool) -> None:
        """Report position, speed and gradient noise."""
        times = self._meter.take(time.monotonic())
        if not is_main:
            return
        goal = self.goal
        full = replace(batching.split, depths=None).step(0, batching.split.global_batch)
        noise, stream = batching.noise, place.stream
        self._mailbox.send(
            Progress,
            epoch=place.position.epoch,
            samples=place.samples,
            total_samples=goal.total_samples if goal is not None else None,
            **asdict(times),
            global_batch=batching.split.global_batch,
            local_batch=len(full.micro_batches[0]),
            local_batches=batching.local_batches,
            rank_sample_s=batching.step_rates.take(),
            straggler_times=batching.stragglers.take(),
            sync_times=self._sync_watch.take(),
            accumulation=len(full.micro_batches),
            gradient_sqr=noise.sqr if noise is not None else None,
            gradient_var=noise.var if noise is not None else None,
            max_global_batch=batching.bounds.most_global,
            progress=place.progress if batching.adaptive else None,
            total_progress=float(goal.total_samples) if goal is not None and goal.by_progress else None,
            dataset_samples=goal.dataset_samples if goal is not None and batching.adaptive else None,
            lr_rule=batching.rule if batching.adaptive else None,
            train_step=place.step_number if goal is not None and goal.counts_steps else None,
            train_steps=goal.total_steps if goal is not None and goal.counts_steps else None,
            draws=goal is not None and goal.dataset_samples is None and stream is None,
            shards=stream.ended_shards if stream is not None else None,
            repeated_samples=stream.repeated if stream is not None else 0,
            repeated_shards=stream.repeated_shards if stream is not None else 0,
            memory=self._memory,
        )

    def batch_changed(self, place: Place, batching: Batching) -> None:
        """Report a new global batch."""
        self._mailbox.send(
            BatchChanged,
            samples=place.samples,
            global_batch=batching.split.global_batch,
            lr_factor=batching.lr_factor,
            cause="ordered by the service",
        )

    def audit(self, audit: Audit | None, *, is_main: bool) -> None:
        """Report an ended epoch once, and again after a loss, because the first report may be lost."""
        if audit is None or not is_main or audit.epoch <= self._reported_epoch:
            return
        self._reported_epoch = audit.epoch
        if audit.samples < audit.dataset_samples:
            warn(
                f"the script left epoch {audit.epoch} after {audit.samples} of {audit.dataset_samples} samples, "
                "so it is not audited"
            )
            return
        self._mailbox.send(
            EpochClosed,
            epoch=audit.epoch,
            samples_seen=audit.seen,
            dataset_samples=audit.dataset_samples,
            exactly_once=audit.exactly_once,
            exact_so_far=audit.exact_so_far,
        )

    def completed(self, place: Place, *, is_main: bool) -> None:
        """Report the end of training: after the audit of data without epochs, or with the part of an epoch that it ended in.

        A script that counts steps may end within an epoch, which is not reported.
        """
        if is_main and self.goal is not None and self.goal.dataset_samples is None:
            self._audit_whole(place)
        epoch, read, of = place.position.epoch, place.position.samples, place.dataset_samples
        counts_steps = self.goal is not None and self.goal.counts_steps
        if counts_steps or of is None or not 0 < read < of:
            self._mailbox.send(Completed, samples=place.samples)
            return
        self._mailbox.send(Completed, samples=place.samples, epoch=epoch, epoch_samples=read)
        if is_main:
            warn(
                f"training has made the progress of all its epochs within epoch {epoch}, after {read} of {of} samples; "
                "this part of an epoch is not audited"
            )

    def _audit_whole(self, place: Place) -> None:
        """Report the audit of data without epochs: each random draw, or each sample of the shards, exactly once.

        Repeated samples of a stream are reported apart, and count as often as they were trained.
        """
        due = Ledger.of_epoch(place.samples) if place.stream is None else place.stream.trained
        exact = place.ledger == due
        self._mailbox.send(
            EpochClosed,
            epoch=0,
            samples_seen=place.ledger.count,
            dataset_samples=place.samples,
            exactly_once=exact,
            exact_so_far=int(exact),
        )
