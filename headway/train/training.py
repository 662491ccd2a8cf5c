"""Order of events at a step boundary: commit, report, membership change, checkpoint, stop."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import NoReturn

from headway.contract.orders import Order
from headway.contract.runtime import (
    BATCH_LEFT_OUT,
    COUNTER_BEGAN_ANEW,
    GRADIENTS_LOST,
    PEER_LOST,
    STATE_NOT_PREPARED,
    Ready,
    Warned,
)
from headway.preemption import StopRequest
from headway.train.checkpoint.replica import Place, Replica
from headway.train.checkpoint.saving import Saver
from headway.train.data.batching import Batching
from headway.train.data.boundary import (
    ACCUMULATE,
    Agreement,
    Boundary,
    BoundaryRequest,
    NewRankApart,
    Statement,
)
from headway.train.data.goal import TrainingGoal
from headway.train.data.ledger import Ledger, LedgerOf
from headway.train.data.position import Position, Split, Step
from headway.train.data.reported_values import ReportedValues
from headway.train.departure import Departure
from headway.train.gradients.averaging import Gradients
from headway.train.gradients.carried import Wait
from headway.train.gradients.probe import NoiseProbe
from headway.train.host.output import exit_actions, warn
from headway.train.membership.changes import Changes
from headway.train.membership.control import Mailbox
from headway.train.membership.left_loop import (
    LoopLeft,
    mark_left,
    mark_left_batch,
    refuse_left,
    refuse_left_batch,
)
from headway.train.membership.meeting import PeersLost, Superseded
from headway.train.membership.peers import Peers
from headway.train.membership.team import Team
from headway.train.progress import StepProgress
from headway.train.reporting import Reporter
from headway.train.state.audit import ReplicaAudit
from headway.train.state.strays import StrayModules
from headway.train.state.sync import StateSync, leave_for_retry
from headway.train.streaming import Reading


class Training:
    """The training progress of this rank with `replica`, and its actions between steps.

    Members may change in every method that begins or ends a step or an epoch. `plan` is the version of the batch plan,
    `evaluates` true within a step with an evaluation, and `first_step` the first one that the present members may report.
    `in_step` is the monotonic begin and the position of the step that this rank is in, and `left_alone` the error by which
    training ends, because another rank has left that step.
    """

    def __init__(
        self,
        replica: Replica,
        gradients: Gradients,
        *,
        team: Team,
        mailbox: Mailbox,
        stop: StopRequest,
        saver: Saver,
        changes: Changes,
        state_sync: StateSync,
        audit: ReplicaAudit,
        values: ReportedValues,
        began_s: float,
    ) -> None:
        self.place = Place()
        self.plan = self.first_step = 0
        self.evaluates = False
        self.in_step: tuple[float, Position] | None = None
        self.left_alone: LoopLeft | None = None
        self._left_batch: Position | None = None
        self._left_out = 0
        self._saves_own_step = (
            False  # the first one since a restart, so that losses cannot undo each step for ever
        )
        self._without_repeat = (
            False  # the next loss is that of a new rank, after a batch that counts on all ranks
        )
        self.gradients, self.values = gradients, values
        self._replica, self._team, self._mailbox = replica, team, mailbox
        self._stop, self._changes, self._saver = stop, changes, saver
        self._state_sync, self._audit, self._strays = state_sync, audit, StrayModules(replica)
        self._departure = Departure(replica, team, saver, mailbox, state_sync, changes)
        self._reporter = Reporter(mailbox)
        self.pace = self._reporter.pace
        self._reading = Reading()
        self._batching: Batching | None = None
        self._progress: StepProgress | None = None
        self._boundary: Boundary | None = None
        self._agreement: Agreement | None = None
        self._attempted_samples = self._steps_taken = 0
        self._created_s = self._began_s = self._ended_s = began_s

    # Before the first step

    def prepare(self) -> None:
        """Continue from the newest checkpoint, unless this rank is a new member.

        The process ends with a request for a restart if the storage does not answer or a peer is lost.

        Raises:
            ValueError: the ranks have made different models.
            TypeError: an object's state cannot be kept in a checkpoint.
        """
        self._saver.check(self._replica)
        if self._team.peers is None:
            return
        try:
            self.place = self._state_sync.start(self._team.peers)
        except PeersLost as loss:
            leave_for_retry(f"{PEER_LOST} before the first step: {loss}")
        self._train_with(self._team.peers)

    def feed(
        self, *, signature: int, seed: int, reading: Reading, batching: Batching, goal: TrainingGoal
    ) -> None:
        """Set the training data, known by their signature, their reading, the batches of a step, and the end.

        Raises:
            ValueError: the ranks have different data, or the checkpoint is from the middle of an epoch of other data.
        """
        self._reading, self.values.shared = reading, True
        self.place = self._state_sync.load_into_replaced(self._team.peers, self.place)
        self._replica.settings.begin()
        self._state_sync.compare_data(self._team.peers, reading.counts, signature, seed, batching)
        self.place = reading.follow(self.place.with_data(signature, seed), self._team.names)
        if self._replica.is_sharded:
            batching.keep_in_step()
        batching.restore_noise(self.place.noise)
        if self.place.accumulates and self._team.peers is not None:
            self.gradients.carried.resume()
            self._saves_own_step = True
        self._batching = batching
        self._reporter.goal = goal
        self._progress = StepProgress(goal, batching, self.gradients)
        self._progress.show(self.place)
        if batching.adaptive:
            batching.follow_optimizer(self._replica.optimizer)
            self.gradients.probe = NoiseProbe(self._replica.optimizer, self.gradients.loss_scale)

    def join(self) -> None:
        """Join the running training, if this process is a new member. May end the process."""
        if self._team.peers is None:
            self._mailbox.send(Ready, ready_s=time.perf_counter() - self._created_s)
            self._change_members(self._team.first_order)

    @property
    def finished(self) -> bool:
        """True once the end of training is reached."""
        return self._present_progress.finished(self.place)

    @property
    def split(self) -> Split:
        """Division of the next step's batch over the ranks."""
        return self._present_batching.split

    def begin_step(self, step: Step, ledger_of: LedgerOf) -> bool:
        """Begin an optimizer step; False if members changed instead."""
        self._began_s, self.evaluates, self.gradients.stepped = time.perf_counter(), False, False
        self._attempted_samples = self.place.samples + len(step.batch)
        order = self._team.due()
        if order is not None and order.lost:
            self._change_members(order, lost=True)
            return False
        self.gradients.lr_factor = self._present_batching.lr_factor
        self._present_progress.begin(self.place, step)
        try:
            self._reading.secure(self.peers, step, self.place)
            mine = ledger_of(step.share) if self._team.counts_samples else Ledger()
            statement = self._statement(mine, order)
            if self.gradients.probe is not None:
                self.gradients.probe.begin(measures=self._present_batching.measures(self.place.samples))
            self._at_boundary.begin(statement, self.place.position, held=self.gradients.exchanges_trainable)
        except PeersLost:
            self._change_members(None, lost=True)
            return False
        self.in_step = time.monotonic(), self.place.position
        return True

    def end_step(self, step: Step, ledger_of: LedgerOf) -> None:
        """Commit the step that the script has finished, and carry out the ranks' agreement.

        Ends the process if that is a stop, or if this rank is no longer a member.
        """
        committed = self._commit(step, ledger_of)
        self.in_step = None
        if self.gradients.carried.counted_twice:
            self._return_to_checkpoint()
        if (uneven := self.gradients.carried.uneven_restart()) is not None:
            self._say(
                COUNTER_BEGAN_ANEW,
                f"after the restart the script's first optimizer step had {uneven[0]} batches and its second {uneven[1]}: its own "
                "counter began anew, so the result may differ from that of an undisturbed run; give the counter to prepare(), count by "
                f"the step of run.train_steps, or {ACCUMULATE}",
            )
        if committed and self._team.rank == 0:
            self._say(STATE_NOT_PREPARED, self._strays.after_step())
        if committed and self._agreement is not None:
            self._rebalance(step, self._agreement)
            self._carry_out(self._agreement)
        else:
            self._change_members(None, lost=True)

    def abandon_step(self, step: Step, ledger_of: LedgerOf) -> None:
        """Commit the step if it was taken before the script left its loop."""
        taken, self.in_step = self.gradients.stepped, None
        self._left_batch = None if taken else self.place.position
        self.gradients.abandon()
        agreed = self._agreement if taken and self._commit(step, ledger_of) else None
        if agreed is not None and not agreed.uses_state(self._team.generation):
            with suppress(PeersLost):  # the end of the epoch finds the loss again
                self._audit.at_boundary(self.peers, stepped=taken)  # as the ranks do that end their step
        self._present_progress.show(self.place)

    def end_epoch(self, epoch: int) -> None:
        """Audit the epoch that the script has finished and begin the next, unless a synchronisation has done so already.

        A stop ends the process here, unless training is over. Training that ends by progress leaves its last epoch as it is.
        """
        while self.place.position.epoch == epoch:
            if self._present_progress.finished_within_epoch(self.place):
                break
            try:
                if self._left_batch == self.place.position and (store := self.peers.store) is not None:
                    mark_left_batch(store, self.peers.rank, self.place.position)
                self._at_boundary.begin(self._statement(Ledger(), self._team.due()))
                agreement = self._at_boundary.agree(0)
            except PeersLost:
                self._change_members(None, lost=True)
            else:
                self.place = self.place.next_epoch()
                self._reporter.audit(self.place.audited, is_main=self._team.rank == 0)
                self._attempted_samples = self.place.samples
                if not self.finished:
                    self._carry_out(agreement)

    def complete(self) -> None:
        """Save the result after the last epoch. Ends the process with a request for a restart if that fails."""
        while True:
            try:
                self.place = self._reading.collect(self.peers, self.place)
                self._audit.at_boundary(self.peers, stepped=self.gradients.stepped, state_is_used=True)
                self.values.share(self.peers)
                saved = self._saver.save(self._replica, self.place) if self._saves else True
                outcomes = self.peers.gather(saved)
                break
            except PeersLost:
                self._change_members(None, lost=True)
        if not all(saved for (saved,) in outcomes):
            leave_for_retry(self._saver.unsaved("the final checkpoint could not be saved"))
        self.values.shared = False
        self._report()
        self._reporter.completed(self.place, is_main=self._team.rank == 0)
        self._stop.ignore()

    def left(self) -> None:
        """Note that the script has left the training loop early. The end of the process tells the ranks that train on."""
        if self._team.peers is not None:
            exit_actions.callback(self._mark_left, self._team.peers, self.place.steps)

    @staticmethod
    def _mark_left(peers: Peers, steps: int) -> None:
        with suppress(PeersLost):
            if (store := peers.store) is not None:
                mark_left(store, peers.rank, steps)

    @property
    def _present_batching(self) -> Batching:
        assert self._batching is not None, "feed() comes first"
        return self._batching

    @property
    def _present_progress(self) -> StepProgress:
        assert self._progress is not None, "feed() comes first"
        return self._progress

    @property
    def peers(self) -> Peers:
        """The present peers. Call it between `join` and the end of training."""
        assert self._team.peers is not None, "between two generations"
        return self._team.peers

    @property
    def _at_boundary(self) -> Boundary:
        assert self._boundary is not None, "between two generations"
        return self._boundary

    def _statement(self, mine: Ledger, order: Order | None) -> Statement:
        request = BoundaryRequest.CONTINUE
        if self._stop.received and not self._leaves_alone(order):
            request = BoundaryRequest.STOP
        elif self.peers.is_main and (self._saves_own_step or self._saver.due(self._team.losses_per_h())):
            request = BoundaryRequest.CHECKPOINT
        return self._present_progress.statement(request, order.generation if order else 0, mine)

    def _leaves_alone(self, order: Order | None) -> bool:
        """Return True if the order takes this rank out, and others train on, whom a stop of this rank does not concern."""
        return not (order is None or self._team.includes_me(order) or self._team.replaces_everyone(order))

    def _commit(self, step: Step, ledger_of: LedgerOf) -> bool:
        """Commit the step if its gradient is complete. Sets the agreement, None when a peer was lost."""
        if self.gradients.leaves_out():
            self._tell_of_left_out(len(step.batch))
        whole = self.gradients.stepped or self.gradients.intact
        self._agreement = None
        try:
            self._agreement = self._at_boundary.agree(len(step.batch))
        except NewRankApart:
            self._without_repeat = whole
        except PeersLost:
            pass
        if whole:
            # A complete gradient contains every rank's samples, even if their statements did not arrive.
            trained = self._agreement.ledger if self._agreement is not None else ledger_of(step.batch)
            self._apply_step(step, trained)
        return whole

    def _apply_step(self, step: Step, trained: Ledger) -> None:
        place = self._present_progress.commit(self.place, step, trained, self._agreement)
        self.place = self._reading.commit(place)
        self._steps_taken += 1
        self._ended_s = time.perf_counter()
        if self._steps_taken == 1:
            self._warm_saver()
            self._reporter.first_step(
                self.place,
                self._replica,
                live=self._state_sync.check_live(renews_groups=bool(self._changes.after)),
            )
        # A short step at the end of an epoch, or one with an evaluation, does not represent the usual step time.
        usual = len(step.batch) == self.split.global_batch and not self.evaluates
        self._reporter.stepped(self._ended_s - self._began_s, self.gradients.meter.compute_s, usual=usual)
        self._saver.report_ended()
        if self._reporter.due() or self._present_batching.stragglers.changed:
            self._report()

    def _rebalance(self, step: Step, agreement: Agreement) -> None:
        """Process the measurements of the step before this one, and change the batch plan if they require it."""
        batching, probe = self._present_batching, self.gradients.probe
        if probe is not None:
            batching.add_noise(probe.measurement, probe.cost)
        if peak := self.gradients.meter.peak_bytes():
            self._reporter.use_memory(self._replica, peak[0], self.gradients.meter.memory_bytes)
        if peak and batching.observe_memory(len(step.micro_batches[0]), *peak):
            self.plan += 1
        if batching.end_step(step, agreement.of(self._team.mesh.leaders)):
            self.plan += 1
        if (depths := self.gradients.take_depths()) is not None and batching.go_partly(depths):
            self.plan += 1
        self.place = self._present_progress.with_noise(self.place)

    def _carry_out(self, agreement: Agreement) -> None:
        used = agreement.uses_state(self._team.generation)
        try:
            if used and self._awaits_own_step(stops=agreement.request is BoundaryRequest.STOP):
                return  # the ranks make the same requests again at the next boundary
            if used:
                self.values.share(self.peers)
                self.place = self._reading.collect(self.peers, self.place)
            self._audit.at_boundary(self.peers, stepped=self.gradients.stepped, state_is_used=used)
        except PeersLost as loss:
            self._without_repeat = isinstance(loss, NewRankApart)
            self._change_members(None, lost=True)
            return
        if agreement.request is BoundaryRequest.STOP:
            self._leave_on_request()
        if agreement.ordered > self._team.generation:
            # Every rank leaves the group at this boundary. A newer order may have arrived meanwhile.
            self._change_members(self._team.due())
        elif agreement.request is BoundaryRequest.CHECKPOINT and self._saves:
            self._saver.begin(self._replica, self.place)
            self._saves_own_step = False

    def _awaits_own_step(self, *, stops: bool) -> bool:
        """Return True, on every rank alike, if a change waits for the step of a script that accumulates on its own.

        A change before that step would drop its gradients, and a checkpoint would not have them.

        Raises:
            PeersLost: a peer is gone.
        """
        mine = self.gradients.carried.wait(time.monotonic(), stops=stops)
        return max(answer for (answer,) in self.peers.gather(mine)) == Wait.FOR_STEP

    def _refuse_repeat(self) -> None:
        """End the process with a request for a restart if a batch cannot be repeated after a loss, because the script counts it.

        The survivors would lose the gradients of the batches since the script's own step, and its counter would count the
        present batch twice. A checkpoint waits for that step, so all samples since it are trained again.
        """
        if not self._state_sync.has_state or self.finished:
            return
        if self.gradients.carried.batches or self.gradients.carried.proven or self.place.accumulates:
            self._return_to_checkpoint()
        self.gradients.carried.repeat()

    def _return_to_checkpoint(self) -> NoReturn:
        if self._saver.group is not None and self._team.peers is not None:
            self._team.peers.abort()  # a checkpoint in progress waits for the lost peer
        self._saver.finish()  # it is of the script's own step
        leave_for_retry(
            f"{PEER_LOST}, and the script accumulates gradients over batches by itself: all samples since its last checkpoint "
            f"are trained again, so that each counts; {ACCUMULATE}, with which a loss costs one step at most"
        )

    def _drop_carried(self) -> str | None:
        """Drop the gradients that the script carries over batches, and return what is to be said; None without any."""
        lost = self.gradients.carried.dropped()
        if not lost or not self._state_sync.has_state or self.finished:
            return None
        return (
            f"the gradients of {lost} batches before sample {self.place.samples:,} are lost: the script accumulates over batches "
            f"by itself, and took no step in time, so the result differs from that of an undisturbed run; {ACCUMULATE}, which "
            "loses none"
        )

    def _tell_of_left_out(self, samples: int) -> None:
        self._left_out += 1
        if self._left_out & (self._left_out - 1):
            return  # the 1st, 2nd, 4th, 8th, … of this process is said
        self._say(
            BATCH_LEFT_OUT,
            f"the {samples} samples after sample {self.place.samples:,} took no step: the script called no backward() for a part "
            "of this batch, and on one rank its condition decides on the whole batch; where it concerns single samples, give "
            "these a loss of 0 instead of leaving them out, so that the result does not depend on the number of ranks",
        )

    def _say(self, code: str, text: str | None) -> None:
        if text is not None:
            warn(text)
            self._mailbox.send(Warned, code=code, text=text)

    @property
    def _saves(self) -> bool:
        """True if this rank has to save checkpoints."""
        return self._saver.group is not None or self._team.rank == 0

    def _warm_saver(self) -> None:
        if self._saves:
            self._saver.warm(self._replica)

    def _report(self) -> None:
        self._reporter.progress(self.place, self._present_batching, is_main=self._team.rank == 0)

    # Membership changes

    def _train_with(self, peers: Peers) -> None:
        """Average gradients with these peers, whose state equals this rank's."""
        joined = self._team.joined
        self._boundary, self.first_step = Boundary(peers, self.values, joined), self.place.first_step
        self.gradients.replicate(peers, self._team.mesh.data, self._boundary)
        self._reporter.forget()
        self._audit.begin(joined)
        self.plan += 1

    def _change_members(self, order: Order | None, *, lost: bool = False) -> None:
        """Follow the order, or the next one, and every newer one, until this rank trains again.

        May end the process: if this rank is not a member, on a request to stop, or when no order comes.

        Raises:
            LoopLeft: a peer was lost because it has left the training loop, or a batch that others train.
        """
        if self.left_alone is not None:
            raise self.left_alone
        if lost and self._team.peers is not None and (store := self._team.peers.store) is not None:
            with suppress(PeersLost):
                refuse_left(store, self.place.steps)
                refuse_left_batch(store)
        if lost and not self._without_repeat:
            self._refuse_repeat()
        self._without_repeat = False
        self._changes.begin(None if lost else order)
        self._boundary = None
        self.pace.restart()
        batch, unsaid = self.split.global_batch, self._drop_carried()
        self.gradients.detach()
        if self.gradients.stepped_incomplete:
            self._state_sync.has_state = self.gradients.stepped_incomplete = False
        after = self._team.generation
        self._state_sync.take_shards(None if lost else order)
        if lost:
            self._saver.lost()
            self._team.abort()
        elif order is not None and not self._team.includes_me(order):
            self._departure.as_ordered(order, self.place, time.perf_counter() - self._ended_s)
        else:
            self._team.leave()
        while True:
            following = order or self._next_order(after)
            if not self._team.includes_me(following):
                self._departure.as_left(following, self.place)
            try:
                peers = self._meet(following)
                break
            except (PeersLost, Superseded):
                self._state_sync.take_shards(None)
                self._team.abort()
                order, after = None, following.generation
        self._resume(peers, batch)
        self._say(GRADIENTS_LOST, unsaid)
        self._changes.complete(lost=following.lost)

    def _meet(self, order: Order) -> Peers:
        """Become a member under the order, with the same state as the others."""
        before = self._team.ranks_before(order)
        peers = self._team.meet(order, patient=not self._state_sync.has_state)
        self._mailbox.set_sender(rank=peers.rank, generation=peers.generation)
        leaders, rank = self._team.mesh.leaders, self._team.data_rank
        self._present_batching.change_members(before[leaders], rank=rank, speeds=order.speeds[leaders])
        # Follow the order before the plan is transferred: a new member has not read this order's batch.
        self._present_batching.follow(order.batch)
        place = self._state_sync.synchronise(peers, order, self.place, self._present_batching)
        self.place = self._reading.follow(place, self._team.names)
        return peers

    def _resume(self, peers: Peers, batch: int) -> None:
        """Resume training after a membership change; earlier steps took `batch` samples."""
        self._saver.generation(peers.generation)
        self._present_progress.show(self.place)
        self._train_with(peers)
        idle_s, lost = time.perf_counter() - self._ended_s, self._attempted_samples > self.place.samples
        self._state_sync.report_switch(peers, self.place, idle_s, lost_steps=int(lost))
        self._attempted_samples = self.place.samples
        self._reporter.audit(self.place.audited, is_main=peers.is_main)
        self._warm_saver()
        if peers.is_main and self.split.global_batch != batch:
            self._reporter.batch_changed(self.place, self._present_batching)

    def _next_order(self, after: int) -> Order:
        """Wait for the next order. Ends the process if none comes."""
        order = self._team.await_order(after) if self._team.live else None
        if order is None and self._stop.received:
            self._leave_on_request()
        if order is None:
            why = "no order came for the remaining ranks" if self._team.live else "this run has no service"
            leave_for_retry(f"{PEER_LOST}, and {why}")
        return order

    def _leave_on_request(self) -> NoReturn:
        if self._state_sync.has_state:
            self._report()
            self._say(GRADIENTS_LOST, self._drop_carried())
        self._departure.on_request(self.place, saves=self._saves)
