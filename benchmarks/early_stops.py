"""Makespan of trials with early ends on elastic jobs, relative to the same trials on fixed slots, in virtual time.

`TRIALS` random trials are submitted at once to a cluster of `NODES` x `NODE_SLOTS` slots. Each trains for `EPOCHS` epochs of
`EPOCH_S` seconds on one slot, with a speedup by Amdahl's law. Its loss falls as a power of the epochs towards its own limit,
with noise. The rule of the service (`service.domain.jobs.halving`) ends trials at 1, 3, 9 and 27 epochs, and the policy and
the solver of the service choose the slots. The fixed sizes are the powers of two up to the cluster. `asha_makespan_ratio` is that to the best of them,
and the largest over the seeds; `asha_loss_ratio` compares the lowest final losses likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from headway.contract.spec_sweep import Asha
from service.domain.jobs.halving import Halving, RungValues, ends, progress_at, rungs_reached
from service.domain.policies.framework.policy import Policy
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray
from service.simulation.model.clusters import configurations_of
from service.simulation.model.laws import amdahl, application_of
from service.simulation.model.world import Arrival, ClusterRules, Kind, View, World
from service.simulation.replay.engine import replay

TRIALS: Final = 100
NODES: Final = 4
NODE_SLOTS: Final = 8
EPOCHS: Final = 81
EPOCH_S: Final = 120.0
PARALLEL: Final = 0.98
"""Part of a trial's work that more slots speed up."""
FIXED: Final = (1, 2, 4, 8, 16, 32)
SEEDS: Final = (1, 2, 3)
RULE: Final = Halving(metric="loss", minimise=True, asha=Asha(min_progress=1, reduction=3))
RULES: Final = ClusterRules(live_pause_s=1.0, on_events=True, view=View.ORACLE)


@dataclass(slots=True)
class PlayedTrials:
    """Trials whose losses at each rung are given (J, rungs), and what they have reported."""

    losses: FloatArray
    reached: dict[int, int] = field(default_factory=dict)
    """Number of rungs that each trial has reached."""
    ended: set[int] = field(default_factory=set)
    """Trials that the rule has ended."""

    def early_ends(self, rows: IntArray, progress: FloatArray) -> BoolArray:
        """Return which of the running trials (n,) the rule ends now."""
        for row, done in zip(rows.tolist(), progress.tolist(), strict=True):
            self.reached[row] = rungs_reached(RULE.asha, int(done / EPOCH_S + 1e-9))
        running = set(rows.tolist())
        trials = [
            RungValues(row + 1, self.losses[row, :count].tolist(), judged=row in running)
            for row, count in sorted(self.reached.items())
        ]
        ended = ends(RULE, trials)
        self.ended |= {number - 1 for number in ended}
        return np.array([row + 1 in ended for row in rows.tolist()], dtype=np.bool_)

    @property
    def final_losses(self) -> list[float]:
        """The losses at the end of the trials that the rule has not ended."""
        return [loss for row, loss in enumerate(self.losses[:, -1].tolist()) if row not in self.ended]


def losses_of(trials: int, random: np.random.Generator) -> FloatArray:
    """Return the losses of random trials at each rung (J, rungs)."""
    rungs = rungs_reached(RULE.asha, EPOCHS)
    epochs = np.array([progress_at(RULE.asha, rung) for rung in range(rungs)], dtype=np.float64)
    limit, scale = random.uniform(0.5, 3.0, trials), random.uniform(1.0, 4.0, trials)
    falls = limit[:, None] + scale[:, None] * epochs ** -random.uniform(0.3, 1.0, trials)[:, None]
    return np.asarray(falls * random.lognormal(0.0, 0.02, falls.shape))


def makespan_s(policy: Policy, losses: FloatArray, slots: int | None) -> tuple[float, float]:
    """Return the seconds until the last trial has ended and the lowest final loss, with fixed slots or (None) any."""
    kinds = (Kind(name="gpu", node_slots=(NODE_SLOTS,) * NODES),)
    configurations = configurations_of(kinds)
    arrivals = tuple(
        Arrival(
            id=f"trial-{row + 1}",
            submit_s=0.0,
            application=0,
            requested_slots=slots or 1,
            min_slots=slots or 1,
            max_slots=slots or 0,
            work=EPOCHS * EPOCH_S,
        )
        for row in range(len(losses))
    )
    world = World(
        kinds=kinds,
        configurations=configurations,
        applications=(application_of(amdahl(PARALLEL), configurations),),
        arrivals=arrivals,
        rules=RULES,
    )
    played = PlayedTrials(losses)
    found = replay(world, policy, early_ends=played.early_ends)
    if not np.isfinite(found.jobs.end_s).all():
        raise RuntimeError("a trial has not ended")
    return found.end_s, min(played.final_losses)


def figures(policy: Policy, *, trials: int = TRIALS, seeds: Sequence[int] = SEEDS) -> dict[str, object]:
    """Return the ratios of elastic trials to those with the best fixed slots, the makespans in seconds, and that size by seed."""
    elastic_s, fixed_s, sizes, loss_ratios = [], [], [], []
    for seed in seeds:
        losses = losses_of(trials, np.random.default_rng(seed))
        took_s, loss = makespan_s(policy, losses, None)
        fixed = {slots: makespan_s(policy, losses, slots) for slots in FIXED}
        best = min(fixed, key=lambda slots: fixed[slots][0])
        elastic_s.append(took_s)
        fixed_s.append(fixed[best][0])
        sizes.append(best)
        loss_ratios.append(loss / fixed[best][1])
    return {
        "asha_makespan_ratio": round(
            max(took_s / best_s for took_s, best_s in zip(elastic_s, fixed_s, strict=True)), 3
        ),
        "asha_loss_ratio": round(max(loss_ratios), 3),
        "asha_elastic_s": [round(one) for one in elastic_s],
        "asha_fixed_s": [round(one) for one in fixed_s],
        "asha_fixed_slots": sizes,
        "asha_trials": trials,
    }
