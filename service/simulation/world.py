"""What a replay is given and what it comes to: values alone.

`C` configurations, `K` device kinds, `E` phases of an application, `J` jobs, `R` rounds, `S` segments. Times are
seconds since the start of the replay, dollars are per slot and hour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.arrays import FloatArray, IntArray
from service.domain.policies.policy import Configurations


class BadInput(ValueError):
    """What was given makes no world. The message is for people: file, row and column first, then what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTrace:
    """How many spot nodes of a kind there are, tick after tick; the trace begins anew when it is over."""

    gap_s: float
    available: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The nodes of one device kind.

    Attributes:
        name: of the kind.
        node_slots: the slots of every node.
        usd_per_slot_h: price of a slot.
        spot_nodes: how many of the nodes, the last ones, come and go with `spot`.
        spot: when they are there; None: always.
    """

    name: str
    node_slots: tuple[int, ...]
    usd_per_slot_h: float = 0.0
    spot_nodes: int = 0
    spot: SpotTrace | None = None

    @property
    def slots(self) -> int:
        """All slots of the kind."""
        return sum(self.node_slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """How an application steps on each configuration, with the best batch: what its ranks would measure.

    Attributes:
        global_batch, accumulation, step_s, sync_s: (E, C) samples of a step, passes of it, and seconds of it, of these
            in synchronisation; NaN where it cannot run.
        noise_scale: (E,) gradient noise scale in samples; NaN where unknown.
        reference_batch: samples of a step as its user wrote it.
        max_batch: what they may grow to.
        max_local: (K,) samples that a slot can take at once.
    """

    global_batch: FloatArray
    accumulation: FloatArray
    step_s: FloatArray
    sync_s: FloatArray
    noise_scale: FloatArray
    reference_batch: float
    max_batch: float
    max_local: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Seconds that the parts of a change take in the live system, measured there. Jobs on their way are left alone.

    Attributes:
        run_s: from a grant of slots until the ranks run and a round may change the job; its first step comes later.
        grow_s: from the decision until newcomers take part; training goes on meanwhile.
        shrink_s: from the decision until the slots that a job leaves are free; training goes on meanwhile.
        stop_s: from the decision until all slots of a job that lost them are free; it trains no more.
    """

    run_s: float
    grow_s: float
    shrink_s: float
    stop_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """How a kind of job really progresses.

    Attributes:
        name: of the application.
        boundaries: (E + 1,) reference samples at which its phases begin, the first 0, and its end.
        goodput: (E, C) reference samples per second with the best batch, 0 where it cannot run. A column is 0 in all
            phases or in none.
        restart_s: a checkpoint, a start and a load.
        steps: what would be measured of it; None: steps of one fixed batch, at the speed that `goodput` says.
        end_s: for which it keeps its slots after its last step: a last checkpoint, the end of its processes.
    """

    name: str
    boundaries: FloatArray
    goodput: FloatArray
    restart_s: float
    steps: Steps | None = None
    end_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a job had before the replay: policies see it, figures do not count it.

    Attributes:
        served_s: seconds on each device kind (K,).
        served_slot_s: slot-seconds.
        changes: how often its slots were changed.
        waited_s: seconds since it last held slots; since its submit where it never did. 0 for one that holds some.
    """

    served_s: tuple[float, ...]
    served_slot_s: float
    changes: int
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job that comes.

    Attributes:
        id: unique.
        submit_s: when; not after the start (0 or less) for jobs that are there when the replay begins.
        application: index among those of the world.
        requested_slots: what a careful user asked for, and what a rigid policy gives.
        min_slots, max_slots: bounds of its sizes; 0 is no upper bound.
        work: reference samples of the whole job, over which the phases of its application are stretched; None: as many
            as the application has.
        done: reference samples done before the replay.
        holds: the column that it holds when the replay begins; only for jobs that are there then.
        declares_length: whether a policy may know how much work it has left.
        weight: how much it counts.
        before: what it had when the replay begins; only for jobs that are there then.
    """

    id: str
    submit_s: float
    application: int
    requested_slots: int = 1
    min_slots: int = 1
    max_slots: int = 0
    work: float | None = None
    done: float = 0.0
    holds: int = NOTHING
    declares_length: bool = True
    weight: float = 1.0
    before: Before | None = None


class View(StrEnum):
    """What a policy sees of jobs: the truth, or what could be learned from noisy measurements of what ran so far."""

    ORACLE = "oracle"
    LEARNED = "learned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How the cluster works.

    Attributes:
        interval_s: between two rounds.
        on_events: a round also when a job is submitted or ends, and when nodes come or go.
        live_pause_s: training that a change of the slots of a running job costs where it is live; None: the restart of
            its application. A start from nothing always costs the restart.
        view: what policies see.
        measurement_noise: standard deviation of the logarithm of a measured step time.
        failures_per_node_h: how often a node fails.
        repair_s: how long it is away then.
        checkpoint_s: between two checkpoints of a job; what it did since the last is lost with a node.
        give_up_s: the replay ends that long after the last submit, whatever is still running.
        latencies: for replays that are to happen as live, second by second: changes take these times, a job that was just
            changed is left alone as in `service.domain.allocation.round`, its script says how much there is to do
            when it trains, and a round is held `interval_s` after the last one. None: nothing of that.
    """

    interval_s: float = 60.0
    on_events: bool = False
    live_pause_s: float | None = None
    view: View = View.LEARNED
    measurement_noise: float = 0.05
    failures_per_node_h: float = 0.0
    repair_s: float = 1800.0
    checkpoint_s: float = 600.0
    give_up_s: float = 14 * 86_400.0
    latencies: Latencies | None = None

    def __post_init__(self) -> None:
        """Raises BadInput for a number that no cluster can have."""
        if not 0.0 < self.interval_s < math.inf:
            raise BadInput(f"rounds are held every few seconds, not every {self.interval_s:g} s")
        for name in ("measurement_noise", "failures_per_node_h", "repair_s", "checkpoint_s", "give_up_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise BadInput(f"{name} is a number of at least 0, not {getattr(self, name):g}")
        if self.live_pause_s is not None and not 0.0 <= self.live_pause_s < math.inf:
            raise BadInput(f"a pause takes some seconds or none, not {self.live_pause_s:g}")
        if self.latencies is not None and not (self.on_events and self.live_pause_s is not None):
            raise BadInput("latencies are those of live changes, with rounds on events")
        if self.latencies is not None and self.failures_per_node_h > 0:
            raise BadInput("latencies are known of nodes that stay")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What happens if nobody decides anything yet. The same world, policy and seed give the same replay.

    Attributes:
        kinds: the nodes; `configurations.kinds` are their names.
        configurations: what jobs could be given (`clusters.configurations_of` makes them from the kinds).
        applications: their tables are over these configurations.
        arrivals: the jobs, in the order of their submits.
        rejected: (id, reason) of jobs that can never run and are not among the arrivals.
        rules: how the cluster works.
        seed: of everything that happens by chance: measurements and failures.
        policy_state: what the policy remembers when the replay begins, as `allocation.steering` carries it over.
    """

    kinds: tuple[Kind, ...]
    configurations: Configurations
    applications: tuple[Application, ...]
    arrivals: tuple[Arrival, ...]
    rejected: tuple[tuple[str, str], ...] = ()
    rules: Rules = field(default_factory=Rules)
    seed: int = 0
    policy_state: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises BadInput for jobs that cannot be."""
        if self.rules.latencies is not None and any(kind.spot is not None for kind in self.kinds):
            raise BadInput("latencies are known of nodes that stay")
        before_s = -math.inf
        for one in self.arrivals:
            if not before_s <= one.submit_s < math.inf:
                raise BadInput(
                    f"{one.id} is submitted at {one.submit_s:g} s; give jobs in the order of their submits"
                )
            if one.work is not None and not 0.0 < one.work < math.inf:
                raise BadInput(f"the work of {one.id} is a positive number, not {one.work:g}")
            if not 0.0 <= one.done < math.inf:
                raise BadInput(f"what {one.id} has done is a number of at least 0, not {one.done:g}")
            if (one.holds != NOTHING or one.before is not None) and one.submit_s > 0:
                raise BadInput(
                    f"{one.id} had or holds slots at the start and is submitted only at {one.submit_s:g} s"
                )
            before_s = one.submit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRows:
    """What became of each job (J,), in the order of the arrivals.

    Attributes:
        id, application: names.
        submit_s, start_s, end_s: when it came, first had slots, and ended; infinite for never.
        requested_slots: as it asked.
        served_slot_s: slot-seconds that it held.
        usd: what these cost.
        changes: how often it was given slots after its first start.
        restarts: how many of these were not live: it started again from a checkpoint.
        lost_s: seconds that it held slots and did not get on: starts, pauses, and work done twice.
        alone_s: how long it takes on a fixed, equal share of the cluster (finish-time fairness, Themis, NSDI'20).
    """

    id: tuple[str, ...]
    application: tuple[str, ...]
    submit_s: FloatArray
    start_s: FloatArray
    end_s: FloatArray
    requested_slots: IntArray
    served_slot_s: FloatArray
    usd: FloatArray
    changes: IntArray
    restarts: IntArray
    lost_s: FloatArray
    alone_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRows:
    """Each round (R,), after its decision.

    Attributes:
        time_s: when.
        queued, running: jobs without and with slots.
        slots_used, slots_present: slots that jobs hold, and that there are.
        usd_per_h: what those that are held cost.
        goodput: sum over running jobs of their goodput over that on their slowest configuration of fewest slots.
        decision_s: real seconds that the policy took.
        gap: of the solution to its bound, relative.
    """

    time_s: FloatArray
    queued: IntArray
    running: IntArray
    slots_used: IntArray
    slots_present: IntArray
    usd_per_h: FloatArray
    goodput: FloatArray
    decision_s: FloatArray
    gap: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Times in which a job held the same column (S,), in the order of their ends: `job` and `column` are indices."""

    job: IntArray
    column: IntArray
    from_s: FloatArray
    to_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What happened to a world under a policy until `end_s`."""

    world: World
    policy: str
    end_s: float
    jobs: JobRows
    rounds: RoundRows
    segments: Segments
