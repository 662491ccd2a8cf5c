"""Input and output values of a replay.

`C` configurations, `K` device kinds, `E` phases of an application, `J` jobs, `R` rounds, `S` segments. Times
are seconds since the start of the replay, and dollars are per slot and hour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.cluster.contention_rules import USUAL, ContentionRules
from service.domain.policies.framework.policy import Configurations
from service.domain.rental.machines import Machine
from service.domain.shared.arrays import FloatArray, IntArray

USUAL_RESTART_S = 30.0
"""Seconds of a checkpoint, a start and a load of an application without a measurement."""


class BadInput(ValueError):
    """Input that does not describe a valid world. The message for users names the file, row and column, then
    the remedy.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTrace:
    """Number of available spot nodes of a kind at each tick. The trace repeats from its beginning after its end."""

    gap_s: float
    available: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Nodes of one device kind.

    Attributes:
        name: Name of the kind.
        node_slots: Slots of every node.
        usd_per_slot_h: Price of a slot.
        spot_nodes: Number of nodes, the last ones, that come and go with `spot`.
        spot: Presence of the spot nodes; None: they are always present.
    """

    name: str
    node_slots: tuple[int, ...]
    usd_per_slot_h: float = 0.0
    spot_nodes: int = 0
    spot: SpotTrace | None = None

    @property
    def slots(self) -> int:
        """Number of slots of all nodes of the kind."""
        return sum(self.node_slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStages:
    """Batches on a job's way to the best one, each about twice the one before.

    Attributes:
        batch: Samples of a step (B,), ascending from the batch that the user wrote.
        step_s, goodput: Seconds of a step, and reference samples per second (E, B, C); the goodput is 0, and the step any
            number, where the application cannot run.
    """

    batch: FloatArray
    step_s: FloatArray
    goodput: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps of an application on each configuration with the best batch, as its ranks would measure them.

    Attributes:
        global_batch, accumulation, step_s, sync_s: Samples, passes and seconds of a step, and its seconds of
            synchronisation (E, C); NaN where the application cannot run.
        noise_scale: Gradient noise scale in samples (E,); NaN where unknown.
        reference_batch: Samples of a step as the user wrote it.
        max_batch: Upper bound of the samples of a step.
        max_local: Samples that a slot can process at once (K,).
        stages: Batches that a job tries first; None: it has the best one from the start.
    """

    global_batch: FloatArray
    accumulation: FloatArray
    step_s: FloatArray
    sync_s: FloatArray
    noise_scale: FloatArray
    reference_batch: float
    max_batch: float
    max_local: FloatArray
    stages: BatchStages | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Seconds of the parts of a change, measured in the live system. Rounds leave a job alone during a change.

    Attributes:
        run_s: From the grant of slots until the ranks run and a round may change the job. Its first step comes later.
        grow_s: From the decision until newcomers take part. Training continues meanwhile.
        shrink_s: From the decision until the slots that a job leaves are free. Training continues meanwhile.
        stop_s: From the decision until all slots of a job that lost them are free. It no longer trains.
    """

    run_s: float
    grow_s: float
    shrink_s: float
    stop_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """True progress of a kind of job.

    Attributes:
        name: Name of the application.
        boundaries: Reference samples at which its phases begin, the first 0, and its end (E + 1,).
        goodput: Reference samples per second with the best batch (E, C), 0 where it cannot run. A column is 0 in all
            phases or in none.
        restart_s: Seconds of a checkpoint, a start and a load.
        steps: Measurements that its ranks would make; None: steps of one fixed batch at the speed of `goodput`.
        converged: Reference samples at which the loss curve that it has reported by each boundary converges, with those done
            before the replay (`PriorService.done`); NaN without a curve (E + 1,); None: it reports no loss.
        end_s: Seconds for which it keeps its slots after its last step: a last checkpoint, the end of its processes.
        at_reference: The same application at the batch that the user wrote; None if it has no other batch.
    """

    name: str
    boundaries: FloatArray
    goodput: FloatArray
    restart_s: float
    steps: Steps | None = None
    converged: FloatArray | None = None
    end_s: float = 0.0
    at_reference: Application | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorService:
    """Service that a job received before the replay. Policies see it, and the figures do not count it.

    Attributes:
        served_s: Seconds on each device kind (K,).
        served_slot_s: Slot-seconds.
        changes: Number of changes of its slots.
        waited_s: Seconds since it last held slots, or since its submission if it never did. 0 for a job that holds some.
        done: Reference samples done that are not part of the job's work in the replay.
    """

    served_s: tuple[float, ...]
    served_slot_s: float
    changes: int
    waited_s: float
    done: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Job that is submitted during the replay or present at its start.

    Attributes:
        id: Unique id.
        submit_s: Time of submission; 0 or less for jobs that are present when the replay begins.
        application: Index of its application in the world.
        requested_slots: Slots that a careful user requests, and that a rigid policy gives.
        min_slots, max_slots: Bounds of its sizes; 0 is no upper bound.
        work: Reference samples of the whole job, over which the phases of its application are stretched; None: as many
            as the application has.
        done: Reference samples done before the replay.
        holds: Column that it holds when the replay begins; only for jobs that are present then.
        declares_length: True if a policy may know its remaining work.
        weight: Weight of the job.
        deadline_s: Time by which it should end; infinite: no deadline.
        promised: True if its deadline was promised at its submission (`goal.admit: reject`).
        before: Service received before the replay; only for jobs that are present then.
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
    deadline_s: float = math.inf
    promised: bool = False
    before: PriorService | None = None


class View(StrEnum):
    """Information of a policy about jobs: the truth, or a model learned from noisy measurements of past steps."""

    ORACLE = "oracle"
    LEARNED = "learned"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRules:
    """Rules by which the cluster works.

    Attributes:
        interval_s: Seconds between two rounds.
        on_events: Hold a round also when a job is submitted or ends, and when nodes come or go.
        live_pause_s: Training time that a change of the slots of a running job costs if it is live; None: the restart of
            its application. A first start always costs the restart.
        view: Information that policies have.
        measurement_noise: Standard deviation of the logarithm of a measured step time.
        failures_per_node_h: Failures of a node per hour.
        repair_s: Seconds for which a failed node is absent.
        checkpoint_s: Seconds between two checkpoints of a job. Work since the last one is lost with a node. None: the
            interval that ranks choose for the failures of the nodes that the job holds.
        give_up_s: Seconds after the last submission at which the replay ends, even with jobs still running.
        latencies: Latencies for a replay that matches the live system second by second. Changes take these times; a job
            that was just changed is left alone as in `service.domain.allocation.inputs.round`; its script announces its
            work when it trains; and a round is held `interval_s` after the last one. None: changes are immediate.
    """

    interval_s: float = 60.0
    on_events: bool = False
    live_pause_s: float | None = None
    view: View = View.LEARNED
    measurement_noise: float = 0.05
    failures_per_node_h: float = 0.0
    repair_s: float = 1800.0
    checkpoint_s: float | None = None
    give_up_s: float = 14 * 86_400.0
    latencies: Latencies | None = None

    def __post_init__(self) -> None:
        """Raise BadInput for a number that is not valid for a cluster."""
        if not 0.0 < self.interval_s < math.inf:
            raise BadInput(
                f"the interval between rounds must be a positive number of seconds, not {self.interval_s:g}"
            )
        for name in ("measurement_noise", "failures_per_node_h", "repair_s", "checkpoint_s", "give_up_s"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < math.inf:
                raise BadInput(f"{name} must be a number of at least 0, not {value:g}")
        if self.live_pause_s is not None and not 0.0 <= self.live_pause_s < math.inf:
            raise BadInput(f"live_pause_s must be a number of at least 0, not {self.live_pause_s:g}")
        if self.latencies is not None and not (self.on_events and self.live_pause_s is not None):
            raise BadInput("latencies require live changes and rounds on events")
        if self.latencies is not None and self.failures_per_node_h > 0:
            raise BadInput("latencies require nodes that neither fail nor leave")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Input of a replay: everything except the decisions. The same world, policy and seed give the same replay.

    Attributes:
        kinds: The nodes; `configurations.kinds` are their names.
        configurations: Configurations of jobs (`clusters.configurations_of` makes them from the kinds).
        applications: Applications, with tables over these configurations.
        arrivals: The jobs, in the order of their submissions.
        rejected: (id, reason) of jobs that can never run and are not among the arrivals.
        rules: Rules by which the cluster works.
        contention: Guarantees for jobs that compete.
        seed: Seed of all random events: measurements and failures.
        policy_state: State of the policy when the replay begins, as `allocation.inputs.policy_state` stores it.
        ended: Jobs that ended before the replay, by the name of their application, oldest first: reference samples, seconds
            with slots, and the work over that at which the loss curve converged, NaN without a curve.
    """

    kinds: tuple[Kind, ...]
    configurations: Configurations
    applications: tuple[Application, ...]
    arrivals: tuple[Arrival, ...]
    rejected: tuple[tuple[str, str], ...] = ()
    rules: ClusterRules = field(default_factory=ClusterRules)
    contention: ContentionRules = USUAL
    seed: int = 0
    policy_state: Mapping[str, Any] = field(default_factory=dict)
    ended: Mapping[str, tuple[tuple[float, float, float], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise BadInput for jobs that are not valid."""
        if self.rules.latencies is not None and any(kind.spot is not None for kind in self.kinds):
            raise BadInput("latencies require nodes that neither fail nor leave")
        before_s = -math.inf
        for one in self.arrivals:
            if not before_s <= one.submit_s < math.inf:
                raise BadInput(
                    f"{one.id} is submitted at {one.submit_s:g} s; give jobs in the order of their submission"
                )
            if one.work is not None and not 0.0 < one.work < math.inf:
                raise BadInput(f"the work of {one.id} must be a positive number, not {one.work:g}")
            if not 0.0 <= one.done < math.inf:
                raise BadInput(
                    f"the completed work of {one.id} must be a number of at least 0, not {one.done:g}"
                )
            if (one.holds != NOTHING or one.before is not None) and one.submit_s > 0:
                raise BadInput(
                    f"{one.id} had or holds slots at the start and is submitted only at {one.submit_s:g} s"
                )
            before_s = one.submit_s

    def at_reference_batches(self) -> World:
        """Return the world in which every job keeps the batch that its user wrote."""
        return replace(self, applications=tuple(one.at_reference or one for one in self.applications))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRows:
    """Outcome of each job (J,), in the order of the arrivals.

    Attributes:
        id, application: Names of the job and of its application.
        submit_s, start_s, end_s: Times of its submission, first slots and end; infinite for never.
        requested_slots: Slots that it requested.
        served_slot_s: Slot-seconds that it held.
        usd: Cost of these slot-seconds in dollars.
        changes: Number of grants of slots after its first start.
        restarts: Number of these changes that were not live, so that it started again from a checkpoint.
        lost_s: Seconds with slots but without progress: starts, pauses, and repeated work.
        alone_s: Completion time on a fixed, equal share of the cluster (finish-time fairness, Themis, NSDI'20).
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
    """State after the decision of each round (R,).

    Attributes:
        time_s: Time of the round.
        queued, running: Numbers of jobs without and with slots.
        slots_used, slots_present: Numbers of slots held by jobs, and of slots present.
        usd_per_h: Cost of the held slots.
        goodput: Sum over running jobs of their goodput, relative to their slowest configuration of fewest slots.
        decision_s: Real seconds that the policy took.
        gap: Relative optimality gap of the solution.
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
    """Periods in which a job held the same column (S,), in the order of their ends; `job` and `column` are indices."""

    job: IntArray
    column: IntArray
    from_s: FloatArray
    to_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Result of replaying a world under a policy until `end_s`. `machines` are those that it rented."""

    world: World
    policy: str
    end_s: float
    jobs: JobRows
    rounds: RoundRows
    segments: Segments
    machines: tuple[Machine, ...] = ()
