"""Input and output of a policy as plain arrays, so that another program can call it.

Shapes use `J` jobs in the order of their submission, `C` configurations and `K` device kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from headway.contract.values.devices import mix_name
from service.domain.allocation.knapsack.problem import Row, Solution, Solve
from service.domain.cluster.contention_rules import Rhythm
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Configurations:
    """Configurations that jobs could be given, by column (C,). `kind` indexes `kinds`; prices are per
    configuration.

    `parts` (C, K) are the slots of each kind, if some configurations have slots of several kinds. `kind` is then
    one of these kinds. Otherwise it is None.

    `crosses` (C,) is the number of the smallest topology level that a configuration must cross
    (`headway.contract.values.topology.level_number`), 0 for none. It is None if no node has labels.
    """

    kinds: tuple[str, ...]
    kind: IntArray
    slots: IntArray
    nodes: IntArray
    usd_per_h: FloatArray
    parts: IntArray | None = None
    crosses: IntArray | None = None

    @property
    def mixed(self) -> BoolArray:
        """Mask (C,) of the configurations with slots of several kinds."""
        if self.parts is None:
            return np.zeros(len(self.slots), dtype=np.bool_)
        return np.asarray((self.parts > 0).sum(axis=1) > 1)

    def of_columns(self, columns: IntArray) -> Configurations:
        """Return the configurations of these columns, in that order; a column may come several times."""
        return Configurations(
            kinds=self.kinds,
            kind=self.kind[columns],
            slots=self.slots[columns],
            nodes=self.nodes[columns],
            usd_per_h=self.usd_per_h[columns],
            parts=None if self.parts is None else self.parts[columns],
            crosses=None if self.crosses is None else self.crosses[columns],
        )

    def kind_name(self, column: int) -> str:
        """Return the device kind of a configuration; of a mixed one, its slots by kind (`mix_name`)."""
        if self.parts is None:
            return self.kinds[int(self.kind[column])]
        return mix_name(dict(zip(self.kinds, self.parts[column].tolist(), strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJobs:
    """Jobs that ended by themselves (E,), oldest first, from which the work of recurring jobs is learned.

    Attributes:
        job_class: (E,) index of the job's class, as in `RoundInput.length_class`; classes without a job in the round
            have further indices.
        work: (E,) reference samples of the whole job.
        run_s: (E,) seconds that the job held slots; 0 if unknown.
        beyond: (E,) work of the whole job over that at which its loss curve converged (`RoundInput.converged`); NaN if
            unknown. None if all are unknown.
    """

    job_class: IntArray
    work: FloatArray
    run_s: FloatArray
    beyond: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundInput:
    """Input of a policy for one round.

    Attributes:
        configurations: the columns.
        rows: the limits: slots of each kind first (one row per kind, in their order), then packing, quotas
            and dollars.
        goodput: (J, C) reference samples per second, 0 for a configuration that cannot run the job.
        allowed: (J, C) configurations that each job may be given now; a policy may allow less, never more.
        current: (J,) the column that a job holds, -1 for none.
        weight: (J,) weight of a job, by priority; 1 is usual.
        age_s: (J,) seconds since the job was submitted.
        waited_s: (J,) seconds since the job last held slots or was submitted; 0 while it holds some.
        served_s: (J, K) seconds that the job has held slots of each kind.
        served_slot_s: (J,) slot-seconds that the job has had.
        changes: (J,) number of changes of the job's slots.
        change_s: (J,) seconds of training that a change of the job's slots costs.
        remaining: (J,) reference samples left; NaN if unknown.
        requested_slots: (J,) the size that a rigid scheduler would give the job.
        job_class: (J,) index of the job's class: jobs of one class have the same speedups and sizes.
        thrift: (J, C) factor from 0 to 1 for the price of a configuration's market, by the goals of jobs that
            accept several markets; None if no job has that choice. It serves policies that do not otherwise
            consider dollars.
        share: (J,) factor from 0.5 to 2 on the job's weight, because its project has used more or less than
            its share; None if projects do not count.
        seats: (J,) a configuration for each job that must have slots this round, -1 for the others; together
            they keep every row. The solver that a policy is given keeps them (`knapsack.guaranteed_solve`). None if no
            job must have slots.
        firm: (J,) running jobs that keep slots whatever others would gain from them; None if there are none.
        next_turn: (J,) positive for waiting jobs that a policy which serves fewer jobs than have seats serves before
            the others, the greatest first; None if there are none.
        done: (J,) reference samples that the job has done, NaN if unknown; None if all are unknown.
        converged: (J,) reference samples from the job's start at which its loss curve converges, NaN if unknown; None if all
            are unknown.
        finished: jobs that ended before; None if nothing is known about them.
        stop_s: (J,) seconds of training that the loss of all slots costs a job, from the order to stop to the first step
            of its next start; None if it is `change_s`.
        length_class: (J,) index of the job's class among `finished`: jobs of one class that run the same command. None if
            it is `job_class`.
    """

    configurations: Configurations
    rows: tuple[Row, ...]
    goodput: FloatArray
    allowed: BoolArray
    current: IntArray
    weight: FloatArray
    age_s: FloatArray
    waited_s: FloatArray
    served_s: FloatArray
    served_slot_s: FloatArray
    changes: IntArray
    change_s: FloatArray
    remaining: FloatArray
    requested_slots: IntArray
    job_class: IntArray
    thrift: FloatArray | None = None
    share: FloatArray | None = None
    seats: IntArray | None = None
    firm: BoolArray | None = None
    next_turn: IntArray | None = None
    done: FloatArray | None = None
    converged: FloatArray | None = None
    finished: FinishedJobs | None = None
    stop_s: FloatArray | None = None
    length_class: IntArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Output of a policy for one round.

    `chosen` (J,) is the column that each job gets, -1 for none. `utility` (J, C) and `idle` (J,) are the
    values that the policy compared, in its own unit, which `unit` names for users. `solution` holds bound and
    prices.
    """

    chosen: IntArray
    utility: FloatArray
    idle: FloatArray
    unit: str
    solution: Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReports:
    """Reports of the jobs' scripts, in the order of the jobs: samples so far, the latest metric `loss`, and the
    samples of an epoch; NaN where unknown. All are of shape (J,).
    """

    done: FloatArray
    loss: FloatArray
    epoch_samples: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundHistory:
    """Events since the previous round, for policies with state. The sequences are in the order of the jobs.

    `elapsed_s` is 0 if the time since the previous round is unknown. `usd_per_h` is the mean spending in that
    time, in slots if nothing has a price. `classes` are the names of the jobs' classes. `samples` (J,) are
    the reference samples of each whole job, NaN if unknown. `ended` has the class and the reference samples of each
    job that completed in that time and whose size was unknown before. `state` is what the policy returned in
    the previous round, empty at first and after a change of policy. `reports` is None in a simulation.
    """

    elapsed_s: float
    usd_per_h: float
    job_ids: Sequence[str]
    classes: Sequence[str]
    samples: FloatArray
    state: Mapping[str, Any]
    ended: Sequence[tuple[str, float]] = ()
    reports: TrainingReports | None = None


class Policy(Protocol):
    """Allocation rule of a cluster: a frozen dataclass whose fields are its parameters (`parameter`)."""

    @property
    def name(self) -> str:
        """Name by which a cluster chooses the policy; a class variable of built-in policies."""
        ...

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return a choice for every job. The method raises no error and has a result for every input."""
        ...


def keeps_batch(policy: Policy) -> bool:
    """Return True if every job keeps the batch of its job file under this policy.

    A policy declares it by a class variable `keeps_batch`. Goodput is then that of the job's own batch.
    """
    return bool(getattr(policy, "keeps_batch", False))


def rhythm_of(policy: Policy) -> Rhythm:
    """Return the rhythm that a policy declares by a class variable `rhythm`, otherwise the usual one."""
    rhythm = getattr(policy, "rhythm", None)
    return rhythm if isinstance(rhythm, Rhythm) else Rhythm()


@runtime_checkable
class StatefulPolicy(Policy, Protocol):
    """Policy with state between rounds. Scheduler and simulator store the state and pass it on unread."""

    def advance(self, given: RoundInput, history: RoundHistory) -> tuple[Policy, Mapping[str, Any]]:
        """Return the policy that chooses in this round, and the state for the next one.

        The state has string keys and values that JSON can express. An empty state ends the history: nothing
        is stored, and the next round begins anew.
        """
        ...
