"""What a step takes: the global batch, how it is divided over the ranks, and the learning rate that goes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.contract.orders import BatchPlan
from headway.train.boundary import Agreement
from headway.train.learning_rate import Rule, factor
from headway.train.noise import Measurement, NoiseEstimate, NoiseScale, from_ranks
from headway.train.paces import Paces
from headway.train.position import Split, divide
from headway.train.uneven import Balancer, MicroBatchLimit

NOISE_EVERY_STEPS = 8
"""How often the noise is measured: reading all gradients twice costs a few percent of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the job allows. `most_global` is None where the global batch is fixed.

    `start_global` is what it begins with, where it may change: None for `global_batch`.
    """

    global_batch: int
    most_global: int | None = None
    start_global: int | None = None
    max_local: int | None = None
    rule: Rule = "none"
    balance: bool = True


class Batching:
    """The present plan, the same on every rank, and what it follows from.

    Every rank feeds it the same agreements at the same boundaries, so nothing needs to be said about it. Newcomers
    take over its state.
    """

    def __init__(
        self, bounds: Bounds, rank: int, world_size: int, *, memory_bytes: int | None = None
    ) -> None:
        self.bounds = bounds
        self.paces = Paces()
        """Of the ranks since rank 0 last took them for its report; nobody else keeps any."""
        self._limit = MicroBatchLimit(bounds.max_local, memory_bytes)
        self.split = Split(
            global_batch=bounds.global_batch,
            rank=rank,
            world_size=world_size,
            max_local=bounds.max_local,
        )
        self._noise = NoiseScale(bounds.global_batch) if bounds.most_global is not None else None
        self._balancer = self._new_balancer()
        if bounds.start_global is not None:
            self.follow(BatchPlan(global_batch=bounds.start_global))

    def keep_in_step(self) -> None:
        """All ranks have as many micro-batches, from now on, and equal local batches."""
        self.split = replace(self.split, in_step=True, local_batches=())
        self._balancer = None
        self.bounds = replace(self.bounds, balance=False)

    @property
    def adaptive(self) -> bool:
        """Whether the global batch may change, for which the noise is measured."""
        return self._noise is not None

    @property
    def local_batches(self) -> tuple[int, ...]:
        """The samples of each rank in a whole step."""
        weights = self.split.local_batches or (1,) * self.split.world_size
        return tuple(len(part) for part in divide(range(self.split.global_batch), weights))

    @property
    def noise(self) -> NoiseEstimate | None:
        """What is known of the gradient noise."""
        return self._noise.estimate if self._noise is not None else None

    @property
    def lr_factor(self) -> float:
        """What the learning rate of the script is multiplied by."""
        return factor(self.bounds.rule, self.split.global_batch, self.bounds.global_batch, self.noise)

    def measures(self, samples: int) -> bool:
        """Whether the noise is measured in the step that begins with so many samples committed."""
        return self.adaptive and samples // self.split.global_batch % NOISE_EVERY_STEPS == 0

    def observe(self, agreement: Agreement, measured: Sequence[int]) -> bool:
        """Take in what the ranks measured in a whole step before, of `measured` samples each. True: the plan changes."""
        if len(measured) != len(agreement.statements):
            return False
        if self.split.rank == 0:
            self.paces.add(measured, [one.compute_s for one in agreement.statements])
        squares = [one.square for one in agreement.statements if one.square > 0.0]
        if len(squares) > 1:
            mean_sqr = agreement.statements[0].squared_mean
            self.take_in(from_ranks(sum(squares), len(squares), mean_sqr, sum(measured)))
        if self._balancer is None:
            return False
        changed = self._balancer.observe(measured, [one.compute_s for one in agreement.statements])
        if changed:
            self._divide()
        return changed

    def take_in(self, measurement: Measurement) -> None:
        """A measurement of the noise, the only one of `NOISE_EVERY_STEPS` steps."""
        if self._noise is not None:
            self._noise.add(measurement, NOISE_EVERY_STEPS * self.split.global_batch)

    def observe_memory(self, micro_batch: int, peak_bytes: int, static_bytes: int) -> bool:
        """A micro-batch of this rank took so much memory. True: smaller or larger ones are due, here alone."""
        self._limit.observe(micro_batch, peak_bytes, static_bytes)
        if self.split.in_step or self._limit.most == self.split.max_local:
            return False
        before, self.split = self.split, replace(self.split, max_local=self._limit.most)
        longest = max(self.local_batches)
        return before.max_local is not None or (self._limit.most or longest) < longest

    def follow(self, plan: BatchPlan | None) -> bool:
        """Do as the service wants, as far as the job allows. True: the global batch changes."""
        if plan is None or self.bounds.most_global is None:
            return False
        wanted = min(max(plan.global_batch, 1), self.bounds.most_global)
        if wanted == self.split.global_batch:
            return False
        self.split = replace(self.split, global_batch=wanted, local_batches=())
        if self._balancer is not None and wanted >= self.split.world_size:
            self._balancer = self._balancer.for_members(range(self.split.world_size), wanted)
        else:
            self._balancer = self._new_balancer()
        self._divide()
        return True

    def change_members(self, before: Sequence[int | None], *, rank: int) -> None:
        """Divide over other ranks; `before` has for each the rank that it was, None for a newcomer."""
        self.paces.forget()
        self.split = replace(self.split, rank=rank, world_size=len(before), local_batches=())
        if self._balancer is not None and 1 < len(before) <= self.split.global_batch:
            self._balancer = self._balancer.for_members(before)
        else:
            self._balancer = self._new_balancer()
        self._divide()

    def state(self) -> dict[str, Any]:
        """Plain values, for newcomers."""
        return {
            "global_batch": self.split.global_batch,
            "noise": self._noise.state_dict() if self._noise is not None else None,
            "balancer": self._balancer.state_dict() if self._balancer is not None else None,
        }

    def take_over(self, state: Mapping[str, Any]) -> None:
        """Go by the plan of a peer."""
        self.split = replace(self.split, global_batch=state["global_batch"], local_batches=())
        if self._noise is not None and state["noise"] is not None:
            self._noise.load_state_dict(state["noise"])
        self._balancer = self._new_balancer()
        if self._balancer is not None and state["balancer"] is not None:
            self._balancer.load_state_dict(state["balancer"])
        self._divide()

    def _new_balancer(self) -> Balancer | None:
        split = self.split
        if not self.bounds.balance or not 1 < split.world_size <= split.global_batch:
            return None
        return Balancer(split.global_batch, split.world_size)

    def _divide(self) -> None:
        if self._balancer is not None:
            self.split = replace(self.split, local_batches=self._balancer.local_batches)
