"""What a policy is given and what it answers: arrays alone, so that another program can call it.

`J` jobs in the order of their submits, `C` configurations, `K` device kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from service.domain.allocation.knapsack.problem import Row, Solution, Solve
from service.domain.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Configurations:
    """What jobs could be given, by column (C,): `kind` indexes `kinds`; prices are those of the whole configuration."""

    kinds: tuple[str, ...]
    kind: IntArray
    slots: IntArray
    nodes: IntArray
    usd_per_h: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundInput:
    """Everything that a policy may look at.

    Attributes:
        configurations: the columns.
        rows: what bounds the choice: slots of each kind first (`kinds` rows, in their order), then packing, quotas
            and dollars.
        goodput: (J, C) reference samples per second, 0 where a job cannot run.
        allowed: (J, C) what each job may be given now; a policy may allow less, never more.
        current: (J,) the column that a job holds, -1 for none.
        weight: (J,) how much a job counts, by priority; 1 is usual.
        age_s: (J,) seconds since its submit.
        waited_s: (J,) seconds since it last held slots, or since its submit; 0 while it holds some.
        served_s: (J, K) seconds that it has held slots of each kind.
        served_slot_s: (J,) slot-seconds that it has had.
        changes: (J,) how often its slots were changed.
        change_s: (J,) seconds of training that a change of its slots costs.
        remaining: (J,) reference samples left; NaN where unknown.
        requested_slots: (J,) the size that a rigid scheduler would give it.
        job_class: (J,) index of its class: jobs of one class have the same speedups and sizes.
        thrift: (J, C) what a configuration counts for the price of its market, from 0 to 1, by the goals of jobs that
            take several; None where nobody has that choice. For policies that do not know dollars otherwise.
        share: (J,) what the job's weight is multiplied by, from 0.5 to 2, since its project has used more or less than its
            share; None where projects do not count.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """`chosen` (J,) is the column that each job gets, -1 for none. `utility` (J, C) and `idle` (J,) are what the policy
    weighed, in its own unit, which `unit` names for people; `solution` holds bound and prices.
    """

    chosen: IntArray
    utility: FloatArray
    idle: FloatArray
    unit: str
    solution: Solution


class Policy(Protocol):
    """A rule that decides who gets what. Its parameters are its fields; it keeps no state between rounds."""

    @property
    def name(self) -> str:
        """The name by which a cluster chooses it."""
        ...

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """A choice for every job. Raises nothing: whatever is in `given`, there is an answer."""
        ...
