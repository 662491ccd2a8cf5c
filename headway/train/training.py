"""The order of things at a step boundary: commit, report, checkpoint, stop."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from headway.contract.runtime import (
    EXIT_RETRY,
    EXIT_STOPPED,
    Checkpointed,
    Completed,
    EpochClosed,
    FirstStep,
    Progress,
    Restored,
    Stopped,
)
from headway.train.boundary import Boundary, Decision
from headway.train.checkpoint import Checkpoints, Schedule
from headway.train.control import Mailbox, StopRequest
from headway.train.ledger import MODULUS, Ledger
from headway.train.meter import Meter
from headway.train.peers import Peers
from headway.train.position import Position, Split, Step
from headway.train.replica import Place, Replica

PROGRESS_EVERY_S = 0.5


class Training:
    """How far this rank is, and what it does about it between steps.

    `checkpoints` is None where nothing is to be kept. A method that ends the process says so.
    """

    def __init__(
        self,
        *,
        peers: Peers,
        mailbox: Mailbox,
        stop: StopRequest,
        checkpoints: Checkpoints | None,
        schedule: Schedule,
    ) -> None:
        self.place = Place()
        self._peers = peers
        self._mailbox = mailbox
        self._stop = stop
        self._checkpoints = checkpoints
        self._schedule = schedule
        self._boundary = Boundary(peers)
        self._meter = Meter(PROGRESS_EVERY_S)
        self._replica: Replica | None = None
        self._split: Split | None = None
        self._saved: Position | None = None
        self._total_samples: int | None = None
        self._steps_taken = 0
        self._began = 0.0

    # Before the first step

    def restore(self, replica: Replica) -> None:
        """Keep `replica` from now on, and continue from the newest checkpoint, if there is one.

        Rank 0 reads it and hands it to its peers, so that replicas are equal by construction. Ends the
        process, asking to be started again, when the storage does not answer.
        """
        self._replica = replica
        if self._checkpoints is None:
            return
        replica.check()
        state, generation, failed = b"", 0, False
        if self._peers.is_main:
            try:
                found = self._checkpoints.latest()
                if found is not None:
                    state, generation = found.state, found.name.generation
            except OSError as error:
                failed = True
                _complain(f"the checkpoints cannot be read, so this run asks to be started again: {error}")
        if self._peers.maximum(failed):
            _leave(EXIT_RETRY)
        state = self._peers.from_main(state)
        if not state:
            return
        self.place = replica.load(state)
        self._saved = self.place.position
        if self._peers.is_main:
            self._mailbox.send(Restored, samples=self.place.samples, from_generation=generation)
        else:
            self.place = replace(self.place, ledger=Ledger())  # the peers' sum is rank 0's

    def feed(self, *, dataset_samples: int, seed: int, split: Split, epochs: int) -> None:
        """The data to train on, for how many epochs, and this rank's part of each step.

        Raises:
            ValueError: the checkpoint is from the middle of an epoch of other data.
        """
        before = self.place
        same = (before.dataset_samples, before.seed) == (dataset_samples, seed)
        if before.position.samples > 0 and not same:
            raise ValueError(
                f"the checkpoint is {before.position.samples} samples into an epoch of {before.dataset_samples} "
                f"samples with seed {before.seed}, but the loader has {dataset_samples} samples and seed {seed}; "
                "give it the same data, or start anew with another checkpoint URI"
            )
        self.place = replace(before, dataset_samples=dataset_samples, seed=seed)
        self._split = split
        self._total_samples = epochs * dataset_samples

    # Steps

    def begin_step(self) -> None:
        """An optimizer step begins."""
        self._began = time.perf_counter()
        self._boundary.begin(self._wish())

    def commit(self, step: Step, indices: NDArray[np.int64]) -> None:
        """The optimizer step was taken; `indices` are the samples of it that this rank trained."""
        self.place = replace(
            self.place,
            position=self.place.position.advance(len(step.batch)),
            ledger=self.place.ledger.add(indices),
        )
        self._steps_taken += 1
        if self._steps_taken == 1:
            self._mailbox.send(FirstStep, samples=self.place.samples)
        elif self._split is not None and len(step.batch) == self._split.global_batch:
            # Neither the first step nor a short one at the end of an epoch says how long a step takes.
            self._meter.add(time.perf_counter() - self._began)
        if self._meter.due(time.monotonic()):
            self._report_progress()

    def end_step(self) -> None:
        """Do what the ranks agreed to do at this boundary. Ends the process when that is to stop."""
        self._act(self._boundary.agree())

    def end_epoch(self) -> None:
        """The script has done everything for this epoch: audit it and go to the next.

        Ends the process when a stop is wanted and training is not over.
        """
        self._audit()
        self.place = replace(self.place, position=self.place.position.next_epoch(), ledger=Ledger())
        self._boundary.begin(self._wish())
        decision = self._boundary.agree()
        if self.place.samples != self._total_samples:
            self._act(decision)

    def complete(self) -> None:
        """Training is over: keep the result. Ends the process, asking for a retry, when that fails."""
        self._save_or_retry()
        self._report_progress()
        self._mailbox.send(Completed, samples=self.place.samples)
        self._stop.ignore()

    # What they are made of

    def _wish(self) -> Decision:
        if self._stop.received:
            return Decision.STOP
        if self._peers.is_main and self._checkpoints and self._schedule.due(time.monotonic()):
            return Decision.CHECKPOINT
        return Decision.CONTINUE

    def _act(self, decision: Decision) -> None:
        if decision is Decision.STOP:
            self._leave_on_request()
        if decision is Decision.CHECKPOINT:
            self._save()

    def _leave_on_request(self) -> NoReturn:
        self._report_progress()
        self._save_or_retry()
        self._mailbox.send(Stopped, samples=self.place.samples)
        _leave(EXIT_STOPPED)

    def _save_or_retry(self) -> None:
        """Save, all ranks waiting until it is done."""
        failed = self._checkpoints is not None and self._saved != self.place.position and not self._save()
        if self._peers.maximum(failed):
            _leave(EXIT_RETRY)

    def _save(self) -> bool:
        """Save a checkpoint on rank 0, with the ledgers of all. False, with a complaint, when it failed."""
        assert self._checkpoints is not None
        assert self._replica is not None
        began = time.monotonic()
        place = replace(self.place, ledger=self._merged_ledger())
        self._saved = place.position
        if not self._peers.is_main:
            return True
        try:
            state = self._replica.dump(place)
            uri = self._checkpoints.save(state, place.position, samples=place.samples)
        except OSError as error:
            self._saved = None
            _complain(f"the checkpoint at {place.samples} samples could not be saved: {error}")
            return False
        finally:
            self._schedule.saved(time.monotonic(), time.monotonic() - began)
        self._mailbox.send(
            Checkpointed,
            uri=uri,
            samples=place.samples,
            size_bytes=len(state),
            save_s=time.monotonic() - began,
        )
        return True

    def _merged_ledger(self) -> Ledger:
        mine = self.place.ledger
        count, total, squares = self._peers.sum([mine.count, mine.total, mine.squares])
        return Ledger(count, total % MODULUS, squares % MODULUS)

    def _audit(self) -> None:
        position, dataset_samples = self.place.position, self.place.dataset_samples
        assert dataset_samples is not None
        if position.samples < dataset_samples:
            if self._peers.is_main:
                _complain(
                    f"epoch {position.epoch} was left after {position.samples} of {dataset_samples} samples, "
                    "so it is not audited"
                )
            return
        seen = self._merged_ledger()
        if self._peers.is_main:
            self._mailbox.send(
                EpochClosed,
                epoch=position.epoch,
                samples_seen=seen.count,
                dataset_samples=dataset_samples,
                exactly_once=seen == Ledger.of_epoch(dataset_samples),
            )

    def _report_progress(self) -> None:
        times = self._meter.take(time.monotonic())
        if not self._peers.is_main or self._split is None:
            return
        full = self._split.step(0, self._split.global_batch)
        self._mailbox.send(
            Progress,
            epoch=self.place.position.epoch,
            samples=self.place.samples,
            total_samples=self._total_samples,
            steps=times.steps,
            step_s_sum=times.step_s_sum,
            step_s_squares=times.step_s_squares,
            global_batch=self._split.global_batch,
            local_batch=len(full.micro_batches[0]),
            accumulation=len(full.micro_batches),
        )


def _complain(sentence: str) -> None:
    sys.stderr.write(f"headway: {sentence}\n")


def _leave(code: int) -> NoReturn:
    """End the process with its output written, and without the tear-down that torch's threads may not survive."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
