"""The order of things at a step boundary: commit, report, change members, checkpoint, stop."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from headway.contract.runtime import (
    EXIT_DONE,
    EXIT_RETRY,
    EXIT_STOPPED,
    Completed,
    EpochClosed,
    FirstStep,
    Left,
    Order,
    Progress,
    Ready,
    Restored,
    Stopped,
    Switched,
)
from headway.train.boundary import Agreement, Boundary, Statement, Wish
from headway.train.control import Mailbox, StopRequest
from headway.train.gradients import Gradients
from headway.train.handover import Standing, choose_source, hand_over, signature
from headway.train.ledger import Ledger
from headway.train.meter import Meter
from headway.train.peers import Peers, PeersLost, Superseded
from headway.train.position import Split, Step
from headway.train.replica import Place, Replica
from headway.train.saving import Saver, complain
from headway.train.team import Team

PROGRESS_EVERY_S = 0.5


class Training:
    """How far this rank is, and what it does about it between steps.

    Members may change in every method that begins or ends a step or an epoch; `plan` counts the changes of what the
    next step is. A method that ends the process says so.
    """

    def __init__(self, *, team: Team, mailbox: Mailbox, stop: StopRequest, saver: Saver) -> None:
        self.place = Place()
        self.plan = 0
        self._team = team
        self._mailbox = mailbox
        self._stop = stop
        self._saver = saver
        self._boundary: Boundary | None = None
        self._meter = Meter(PROGRESS_EVERY_S)
        self._replica: Replica | None = None
        self._gradients: Gradients | None = None
        self._split: Split | None = None
        self._signature = 0
        self._agreement: Agreement | None = None
        self._holds_state = False
        self._total_samples: int | None = None
        self._attempted_samples = 0
        self._steps_taken = 0
        self._created_s = time.perf_counter()
        self._began_s = self._ended_s = self._created_s

    # Before the first step

    def prepare(self, replica: Replica, gradients: Gradients) -> None:
        """Keep these from now on. Unless this rank is a newcomer, continue from the newest checkpoint.

        Rank 0 reads it and hands it to its peers, so that replicas are equal by construction. Ends the
        process, asking to be started again, when the storage does not answer or a peer is lost.

        Raises:
            ValueError: the ranks have made different models.
        """
        self._replica, self._gradients = replica, gradients
        self._signature = signature(replica.objects)
        self._saver.warm(replica)
        peers = self._team.peers
        if peers is None:
            return
        try:
            if len({signature for (signature,) in peers.gather(self._signature)}) > 1:
                raise ValueError(
                    "the ranks have made different models (other parameters, shapes or types), so they cannot be "
                    "kept equal; make the same one on every rank"
                )
            self._load(peers)
        except PeersLost as loss:
            _leave_for_retry(f"a peer was lost before training began: {loss}")
        self._train_with(peers)

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

    def join(self) -> None:
        """Join the training that this process was started for, if it is a newcomer. May end the process."""
        if self._team.peers is None:
            self._mailbox.send(Ready, ready_s=time.perf_counter() - self._created_s)
            self._change_members(self._team.first_order)

    # Steps

    @property
    def split(self) -> Split:
        """How the next step's batch is divided."""
        assert self._split is not None
        return self._split

    def begin_step(self, step: Step, indices: NDArray[np.int64]) -> bool:
        """An optimizer step begins; False when members changed instead. `indices` is the epoch's order."""
        self._began_s = time.perf_counter()
        self._attempted_samples = self.place.samples + len(step.batch)
        order = self._team.due()
        if order is not None and order.lost:
            self._change_members(order, lost=True)
            return False
        mine = Ledger().add(indices[step.share.start : step.share.stop])
        try:
            self._at_boundary.begin(self._statement(mine, order))
        except PeersLost:
            self._change_members(None, lost=True)
            return False
        return True

    def end_step(self, step: Step, indices: NDArray[np.int64]) -> None:
        """The script has done everything for the step: commit it and do what the ranks agreed on.

        Ends the process when that is to stop, or when this rank is no member any more.
        """
        if self._commit(step, indices) and (agreement := self._agreement) is not None:
            self._act(agreement)
        else:
            self._change_members(None, lost=True)

    def abandon_step(self, step: Step, indices: NDArray[np.int64]) -> None:
        """The script left its loop within the step: commit it if it was taken."""
        assert self._gradients is not None
        taken = self._gradients.stepped
        self._gradients.abandon()
        if taken:
            self._commit(step, indices)

    def end_epoch(self, epoch: int) -> None:
        """The script has done everything for this epoch: audit it and go to the next.

        Ends the process when a stop is wanted and training is not over.
        """
        if self.place.position.epoch > epoch:
            return  # this rank was behind, and caught up with one that had ended the epoch
        self._audit()
        self.place = replace(self.place, position=self.place.position.next_epoch(), ledger=Ledger())
        self._attempted_samples = self.place.samples
        if self.place.samples == self._total_samples:
            return
        try:
            self._at_boundary.begin(self._statement(Ledger(), self._team.due()))
            agreement = self._at_boundary.agree()
        except PeersLost:
            self._change_members(None, lost=True)
        else:
            self._act(agreement)

    def complete(self) -> None:
        """Training is over: keep the result. Ends the process, asking for a retry, when that fails."""
        assert self._replica is not None
        while True:
            peers = self._present_peers
            saved = self._saver.save(self._replica, self.place) if peers.is_main else True
            try:
                outcomes = peers.gather(saved)
                break
            except PeersLost:
                self._change_members(None, lost=True)
        if not all(saved for (saved,) in outcomes):
            _leave_for_retry("the last checkpoint could not be saved")
        self._report_progress()
        self._mailbox.send(Completed, samples=self.place.samples)
        self._stop.ignore()

    # What they are made of

    @property
    def _present_peers(self) -> Peers:
        assert self._team.peers is not None, "between two generations"
        return self._team.peers

    @property
    def _at_boundary(self) -> Boundary:
        assert self._boundary is not None, "between two generations"
        return self._boundary

    def _statement(self, mine: Ledger, order: Order | None) -> Statement:
        wish = Wish.CONTINUE
        if self._stop.received:
            wish = Wish.STOP
        elif self._present_peers.is_main and self._saver.due():
            wish = Wish.CHECKPOINT
        return Statement(
            wish, order.generation if order else 0, mine.count, mine.total, mine.squares, 0.0, 0.0, 0.0
        )

    def _commit(self, step: Step, indices: NDArray[np.int64]) -> bool:
        """Take in the step, if its gradient was whole. Sets the agreement, None when a peer was lost."""
        assert self._gradients is not None
        whole = self._gradients.stepped or self._gradients.sound
        self._agreement = None
        try:
            self._agreement = self._at_boundary.agree()
        except PeersLost:
            if not whole:
                return False
        if whole:
            # A whole gradient has every rank's samples in it, also when their statements came no more.
            trained = (
                self._agreement.ledger
                if self._agreement is not None
                else Ledger().add(indices[step.batch.start : step.batch.stop])
            )
            self._take_in(step, trained)
        return whole

    def _take_in(self, step: Step, trained: Ledger) -> None:
        self.place = replace(
            self.place,
            position=self.place.position.advance(len(step.batch)),
            ledger=self.place.ledger + trained,
        )
        self._steps_taken += 1
        self._ended_s = time.perf_counter()
        if self._steps_taken == 1:
            self._mailbox.send(FirstStep, samples=self.place.samples, live=self._team.live)
        elif len(step.batch) == self.split.global_batch:
            # Neither the first step nor a short one at the end of an epoch says how long a step takes.
            self._meter.add(self._ended_s - self._began_s)
        self._saver.look()
        if self._meter.due(time.monotonic()):
            self._report_progress()

    def _act(self, agreement: Agreement) -> None:
        if agreement.wish is Wish.STOP:
            self._leave_on_request()
        if agreement.ordered > self._team.generation:
            # Everyone leaves the group at this boundary. A newer order than that may have come meanwhile.
            self._change_members(self._team.due())
        elif agreement.wish is Wish.CHECKPOINT and self._present_peers.is_main:
            assert self._replica is not None
            self._saver.begin(self._replica, self.place)

    # Changes of members

    def _train_with(self, peers: Peers) -> None:
        """The state is the same as that of these peers: average with them."""
        assert self._gradients is not None
        self._gradients.replicate(peers)
        self._boundary = Boundary(peers)
        self._holds_state = True
        self.plan += 1

    def _change_members(self, order: Order | None, *, lost: bool = False) -> None:
        """Follow the order, or the next that comes, and every newer one, until this rank trains again.

        May end the process: when this rank is no member, on a request to stop, or when no order comes.
        """
        assert self._gradients is not None
        self._boundary = None
        self._gradients.part()
        after = self._team.generation
        if lost:
            self._saver.lost()
            self._team.lose()
        elif order is not None and not self._team.includes_me(order):
            self._leave_in_order(order)
        else:
            self._team.part()
        while True:
            following = order or self._next_order(after)
            if not self._team.includes_me(following):
                self._say_left(following)
            try:
                peers = self._team.meet(following)
                self._mailbox.speak_for(rank=peers.rank, generation=peers.generation)
                sync_bytes = self._level(peers, following)
                break
            except (PeersLost, Superseded):
                self._team.lose()
                order, after = None, following.generation
        self._go_on(peers, sync_bytes)

    def _go_on(self, peers: Peers, sync_bytes: int) -> None:
        self._train_with(peers)
        if self._split is not None:
            self._split = replace(self._split, rank=peers.rank, world_size=peers.world_size, local_batches=())
        self._saver.generation(peers.generation)
        self._mailbox.send(
            Switched,
            samples=self.place.samples,
            world_size=peers.world_size,
            pause_s=max(0.0, time.perf_counter() - self._ended_s),
            lost_steps=int(self._attempted_samples > self.place.samples),
            sync_bytes=sync_bytes,
        )
        self._attempted_samples = self.place.samples

    def _next_order(self, after: int) -> Order:
        """The next order. Ends the process when none comes."""
        if not self._team.live:
            _leave_for_retry("a peer was lost, and nobody gives orders here")
        order = self._team.await_order(after)
        if order is None and self._stop.received:
            self._leave_on_request()
        if order is None:
            _leave_for_retry("a peer was lost, and no order came for those that are left")
        return order

    def _level(self, peers: Peers, order: Order) -> int:
        """Bring all members to the state of the most advanced; the bytes that it took.

        Raises:
            PeersLost, Superseded: there is a new change of members to make.
        """
        assert self._gradients is not None
        assert self._replica is not None
        position = self.place.position
        holds = self._holds_state and not self._gradients.spoiled
        mine = Standing(holds, position.epoch, position.samples, self._signature)
        standings = [Standing(bool(holds), *rest) for holds, *rest in peers.gather(*mine.numbers)]
        source = choose_source(standings)
        if source is None:
            return self._load_handed_over(peers, order)
        if mine.signature != standings[source].signature:
            _leave_for_retry("the model here differs from the one that is trained (names, shapes or types)")
        if any(one.signature != mine.signature for one in standings):
            raise PeersLost("a newcomer has made another model")
        receivers = [rank for rank, one in enumerate(standings) if not one.same_place(standings[source])]
        if not receivers:
            return 0
        if peers.rank in receivers:
            self._holds_state = False  # while it is neither the old one nor the new
        self.place, sync_bytes = hand_over(
            self._replica.objects, self.place, peers=peers, source=source, receivers=receivers
        )
        self._gradients.spoiled = False
        return sync_bytes

    def _load_handed_over(self, peers: Peers, order: Order) -> int:
        """No member has the state: those before them keep it in storage as they leave, unless they are lost."""
        if not order.lost and not self._team.wait_for_mark(_HANDED_OVER, order):
            raise Superseded
        return self._load(peers)

    def _load(self, peers: Peers) -> int:
        """Rank 0's newest checkpoint, or what it has, for everyone. Ends the process when storage is silent."""
        assert self._replica is not None
        failed, from_generation = False, 0
        if peers.is_main:
            try:
                found = self._saver.load(self._replica)
                if found is not None:
                    self.place, from_generation = found
            except OSError as error:
                failed = True
                complain(f"the checkpoints cannot be read, so this run asks to be started again: {error}")
        outcomes = peers.gather(failed, from_generation)
        if any(failed for failed, _ in outcomes):
            _leave(EXIT_RETRY)
        sync_bytes = 0
        if peers.world_size > 1:
            self.place, sync_bytes = hand_over(
                self._replica.objects,
                self.place,
                peers=peers,
                source=0,
                receivers=range(1, peers.world_size),
            )
        if from_generation and peers.is_main:
            self._mailbox.send(Restored, samples=self.place.samples, from_generation=from_generation)
        return sync_bytes

    # Ends

    def _leave_in_order(self, order: Order) -> NoReturn:
        """This rank is not a member of the next generation: nobody waits for it any more."""
        if self._team.leaves_nobody(order) and self._present_peers.is_main:
            assert self._replica is not None
            if not self._saver.save(self._replica, self.place):
                _leave_for_retry("the state could not be handed over")
            self._team.mark(_HANDED_OVER, order)
        self._say_left(order)

    def _say_left(self, order: Order) -> NoReturn:
        self._saver.finish()
        self._mailbox.send(Left, samples=self.place.samples, joined=order.generation)
        _leave(EXIT_DONE)

    def _leave_on_request(self) -> NoReturn:
        """Keep the state and stop. Whoever was to save may be lost: then each saves, since each holds the same."""
        assert self._replica is not None
        if not self._holds_state:
            _leave(EXIT_STOPPED)
        peers = self._team.peers
        self._report_progress()
        saved = True
        if peers is None or peers.is_main:
            saved = self._saver.save(self._replica, self.place)
        try:
            outcomes = peers.gather(saved) if peers is not None else []
        except PeersLost:
            outcomes = [[self._saver.save(self._replica, self.place)]]
        if not saved or not all(saved for (saved,) in outcomes):
            _leave(EXIT_RETRY)
        self._mailbox.send(Stopped, samples=self.place.samples)
        _leave(EXIT_STOPPED)

    # Reports

    def _audit(self) -> None:
        position, dataset_samples = self.place.position, self.place.dataset_samples
        assert dataset_samples is not None
        if not self._present_peers.is_main:
            return
        if position.samples < dataset_samples:
            complain(
                f"epoch {position.epoch} was left after {position.samples} of {dataset_samples} samples, "
                "so it is not audited"
            )
            return
        self._mailbox.send(
            EpochClosed,
            epoch=position.epoch,
            samples_seen=self.place.ledger.count,
            dataset_samples=dataset_samples,
            exactly_once=self.place.ledger == Ledger.of_epoch(dataset_samples),
        )

    def _report_progress(self) -> None:
        times = self._meter.take(time.monotonic())
        if self._team.rank != 0 or self._split is None:
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


_HANDED_OVER = "handed over"


def _leave_for_retry(sentence: str) -> NoReturn:
    complain(f"{sentence}; this process ends and asks to be started again")
    _leave(EXIT_RETRY)


def _leave(code: int) -> NoReturn:
    """End the process with its output written, and without the tear-down that torch's threads may not survive."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
