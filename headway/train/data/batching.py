"""The batch plan of a step: the global batch, its division over the ranks, and the matching learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.optim import Optimizer

from headway.contract.orders import BatchPlan
from headway.contract.values.balance import USUAL_BALANCE, BalanceRule
from headway.contract.values.efficiency import efficiency
from headway.contract.values.learning_rate_rules import Rule, RuleSetting
from headway.train.data.boundary import Agreement
from headway.train.data.micro_batches import MicroBatchLimit
from headway.train.data.position import Split, Step, divide
from headway.train.data.step_rates import StepRates
from headway.train.data.stragglers import StragglerWatch
from headway.train.data.uneven import Balancer
from headway.train.gradients.depths import Depths, LevelCosts, PartialStep
from headway.train.gradients.learning_rate import factor, rule_for
from headway.train.gradients.noise import Measurement, NoiseEstimate, NoiseScale, from_ranks
from headway.train.gradients.noise_schedule import NoiseSchedule
from headway.train.host.output import warn


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits that the job sets. `most_global` is None where the global batch is fixed.

    `start_global` is the first global batch of a job whose batch may change; None: `global_batch`. `start_effect` is its
    first exponent of the efficiency. Without `balance`, local batches are even.
    """

    global_batch: int
    most_global: int | None = None
    start_global: int | None = None
    start_effect: float = 1.0
    max_local: int | None = None
    rule: RuleSetting = "none"
    balance: BalanceRule | None = USUAL_BALANCE


class Batching:
    """The present plan, the same on every rank, and the measurements behind it.

    Every rank processes the same agreements at the same boundaries, so ranks need not exchange the plan. New
    members load its state.
    """

    def __init__(
        self,
        bounds: Bounds,
        rank: int,
        world_size: int,
        *,
        memory_bytes: int | None = None,
        speeds: Sequence[float] = (),
    ) -> None:
        """Divide the batch by the expected relative `speeds` of the ranks, evenly without them."""
        self.bounds = bounds
        self.rule: Rule = "none" if bounds.rule == "auto" else bounds.rule
        """Rule of the learning rate; `auto` needs `follow_optimizer` first."""
        self.step_rates = StepRates()
        """Step rates of the ranks since rank 0's last report; other ranks collect none."""
        self.stragglers = StragglerWatch()
        """Ranks that stay slower than the others; watched by rank 0."""
        self._limit = MicroBatchLimit(bounds.max_local, memory_bytes)
        self.split = Split(
            global_batch=bounds.global_batch,
            rank=rank,
            world_size=world_size,
            max_local=bounds.max_local,
        )
        self._effect = bounds.start_effect
        self._noise = NoiseScale(bounds.global_batch) if bounds.most_global is not None else None
        self._noise_schedule = NoiseSchedule()
        self._speeds = tuple(speeds)
        self._balancer = self._new_balancer()
        self._level_costs: LevelCosts | None = None
        self._last: tuple[tuple[int, ...], PartialStep | None] | None = None
        self._divide()
        if bounds.start_global is not None:
            self.follow(BatchPlan(global_batch=bounds.start_global, effect=bounds.start_effect))

    def follow_optimizer(self, optimizer: Optimizer) -> None:
        """Choose the rule of the learning rate by the optimizer, where the job leaves it open."""
        self.rule = rule_for(self.bounds.rule, optimizer)
        if self.bounds.rule == "auto" and self.rule == "none" and self.split.rank == 0:
            warn(
                f"the learning rate does not follow the global batch: no rule is known for {type(optimizer).__name__}; "
                "set batch.lr_rule in the job file"
            )

    def keep_in_step(self) -> None:
        """Give all ranks the same number of micro-batches and equal local batches from now on."""
        self.split = replace(self.split, in_step=True, local_batches=())
        self._balancer = None
        self.bounds = replace(self.bounds, balance=None)

    @property
    def adaptive(self) -> bool:
        """True if the global batch may change, for which the noise is measured."""
        return self._noise is not None

    @property
    def local_batches(self) -> tuple[int, ...]:
        """Samples of each rank in a whole step, at full depth."""
        weights = self.split.local_batches or (1,) * self.split.world_size
        return tuple(len(part) for part in divide(range(self.split.global_batch), weights))

    @property
    def noise(self) -> NoiseEstimate | None:
        """Estimate of the gradient noise, if it is measured."""
        return self._noise.estimate if self._noise is not None else None

    @property
    def noise_state(self) -> Mapping[str, Any] | None:
        """State of the estimate of the gradient noise as plain numbers, if it is measured."""
        return self._noise.state_dict() if self._noise is not None else None

    @property
    def noise_every_wanted(self) -> int:
        """Interval in steps that this rank proposes for measurements of the noise."""
        return self._noise_schedule.wanted

    @property
    def lr_factor(self) -> float:
        """Factor by which the script's learning rate is multiplied."""
        return factor(self.rule, self.split.global_batch, self.bounds.global_batch, self.noise)

    @property
    def efficiency(self) -> float:
        """Progress of a sample in a step of the present batch, relative to one in a step of the job's own batch.

        At an unscaled learning rate a step makes at most the progress of one of the job's own batch.
        """
        if not self.adaptive:
            return 1.0
        noise = self.noise if self.rule != "none" else None
        return efficiency(
            self.split.global_batch,
            self.bounds.global_batch,
            sqr=noise.sqr if noise is not None else None,
            var=noise.var if noise is not None else None,
            effect=self._effect,
        )

    def measures(self, samples: int) -> bool:
        """Return True if the noise is measured in the step that begins after `samples` committed samples."""
        return self.adaptive and samples // self.split.global_batch % self._noise_schedule.every == 0

    def go_partly(self, depths: Sequence[float]) -> bool:
        """Give each rank a depth of back-propagation in turn. True: the plan changes.

        `depths` are those of the levels, ascending; the last one is 1. Gradients stay whole where their noise is measured.
        """
        if depths[0] >= 1.0 or self.split.in_step or self.adaptive:
            return False
        self._level_costs = LevelCosts(depths)
        self._set_costs()
        return True

    def end_step(self, step: Step, agreement: Agreement) -> bool:
        """Process a committed step, whose agreement has the measurements of the step before. True: the plan changes."""
        whole = len(step.batch) == self.split.global_batch
        before, self._last = self._last, (self.local_batches, step.partial) if whole else None
        if before is None or before[0] != self.local_batches:
            return False
        changed = self.observe(agreement, *before)
        if changed:
            self._last = None
        return changed

    def observe(
        self, agreement: Agreement, measured: Sequence[int], partial: PartialStep | None = None
    ) -> bool:
        """Process the ranks' measurements of an earlier step of `measured` samples each. True: the plan changes.

        After a partial step, `measured` are the samples that would have taken equal time at full depth.
        """
        if len(measured) != len(agreement.statements):
            return False
        compute_s: Sequence[float] = [one.compute_s for one in agreement.statements]
        deepens = False
        if partial is not None and self.split.depths is not None and self._level_costs is not None:
            deepens = not self.split.depths.even and self._level_costs.observe(partial, compute_s)
            compute_s = self.split.depths.whole_s(partial, compute_s, measured)
            if deepens:
                self._set_costs()
        if self.split.rank == 0:
            self.step_rates.add(measured, compute_s)
            self.stragglers.observe(measured, compute_s, self._speeds)
        squares = [one.square for one in agreement.statements if one.square > 0.0]
        if len(squares) > 1:
            mean_sqr = agreement.statements[0].squared_mean
            self.add_noise(from_ranks(sum(squares), len(squares), mean_sqr, sum(measured)))
        self._noise_schedule.agree([one.noise_every for one in agreement.statements])
        if self._balancer is None:
            return deepens
        changed = self._balancer.observe(measured, compute_s)
        if changed:
            self._divide()
        return changed or deepens

    def add_noise(self, measurement: Measurement | None, cost: float = 0.0) -> None:
        """Add a measurement of the noise, if there is one, and its cost to this rank in steps, if it is known."""
        schedule = self._noise_schedule
        schedule.add_cost(cost)
        if self._noise is not None and measurement is not None:
            self._noise.add(measurement, schedule.every * self.split.global_batch)
            schedule.propose(self._noise, self.split.global_batch)

    def restore_noise(self, state: Mapping[str, Any] | None) -> None:
        """Continue the estimate of the gradient noise from this state, if there is one."""
        if self._noise is not None and state is not None:
            self._noise.load_state_dict(state)

    def observe_memory(self, micro_batch: int, peak_bytes: int, static_bytes: int) -> bool:
        """Record the memory use of a micro-batch. True: this rank's micro-batches change in size."""
        self._limit.observe(micro_batch, peak_bytes, static_bytes)
        if self.split.in_step or self._limit.most == self.split.max_local:
            return False
        before, self.split = self.split, replace(self.split, max_local=self._limit.most)
        longest = max(self.local_batches)
        return before.max_local is not None or (self._limit.most or longest) < longest

    def follow(self, plan: BatchPlan | None) -> bool:
        """Follow the service's plan within the job's limits. True: the global batch changes."""
        if plan is None or self.bounds.most_global is None:
            return False
        self._effect = plan.effect
        wanted = min(max(plan.global_batch, 1), self.bounds.most_global)
        if wanted == self.split.global_batch:
            return False
        self.split = replace(self.split, global_batch=wanted, local_batches=())
        if self._balancer is not None and wanted >= self.split.world_size:
            self._balancer = self._balancer.for_members(
                range(self.split.world_size), wanted, speeds=self._speeds
            )
        else:
            self._balancer = self._new_balancer()
        self._divide()
        return True

    def change_members(
        self, before: Sequence[int | None], *, rank: int, speeds: Sequence[float] = ()
    ) -> None:
        """Divide the batch over other ranks.

        `before` has the previous rank of each, None for a new member. `speeds` are their expected relative
        speeds, for new members; empty for equal ones.
        """
        self.step_rates.forget()
        self.stragglers.forget()
        self._speeds = tuple(speeds)
        self._level_costs = self._last = None
        self.split = replace(self.split, rank=rank, world_size=len(before), local_batches=(), depths=None)
        if self._balancer is not None and 1 < len(before) <= self.split.global_batch:
            self._balancer = self._balancer.for_members(before, speeds=self._speeds)
        else:
            self._balancer = self._new_balancer()
        self._divide()

    def state(self) -> dict[str, Any]:
        """Return the state as plain values, for new members."""
        return {
            "global_batch": self.split.global_batch,
            "effect": self._effect,
            "noise": self.noise_state,
            "noise_every": self._noise_schedule.every,
            "balancer": self._balancer.state_dict() if self._balancer is not None else None,
        }

    def take_over(self, state: Mapping[str, Any]) -> None:
        """Load the plan of a peer."""
        self.split = replace(self.split, global_batch=state["global_batch"], local_batches=())
        self._effect = state["effect"]
        self.restore_noise(state["noise"])
        self._noise_schedule.every = state["noise_every"]
        self._balancer = self._new_balancer()
        if self._balancer is not None and state["balancer"] is not None:
            self._balancer.load_state_dict(state["balancer"])
        self._divide()

    def _new_balancer(self) -> Balancer | None:
        split = self.split
        rule = self.bounds.balance
        if rule is None or not 1 < split.world_size <= split.global_batch:
            return None
        return Balancer(split.global_batch, split.world_size, rule=rule, speeds=self._speeds)

    def _set_costs(self) -> None:
        assert self._level_costs is not None
        depths = Depths(self._level_costs.costs, even=not self.bounds.balance)
        self.split = replace(self.split, depths=depths)

    def _divide(self) -> None:
        if self._balancer is not None:
            self.split = replace(self.split, local_batches=self._balancer.local_batches)
