"""Scenes of jobs that compete for the slots of a small cluster, as the arrays that the rules read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from hypothesis import strategies as st

from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.allocation.knapsack.solver import solve
from service.domain.contention.deadline_plan import Deadlines
from service.domain.contention.evidence import Evidence
from service.domain.contention.guaranteed_jobs import GuaranteedJobs, Tenure, guaranteed_jobs_of
from service.domain.contention.rules import Contest, contend
from service.domain.policies.framework.policy import Configurations, RoundInput
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A job: `holds` slots of kind `kind`, or waits. Its speed grows with the slots to the power `scaling`."""

    holds: int = 0
    kind: int = 0
    sizes: tuple[int, ...] = (1, 2, 4)
    known: tuple[int, ...] = (1, 2, 4)
    scaling: float = 0.9
    priority: int = 50
    weight: float = 1.0
    waited_s: float = 0.0
    age_s: float = 1000.0
    run_s: float = 600.0
    min_run_s: float = 60.0
    change_s: float = 0.5
    recent_s: float = 0.0
    remaining: float = math.nan
    pinned: bool = False
    rigid: bool = False
    forced: bool = False
    leased: bool = False
    promised_slots: bool = False
    restart_s: float = 3.0
    rests_s: float = 0.0
    reported_left_s: float = math.inf
    exempt: bool = False
    entitled: bool = False
    left_s: float = math.inf
    """Seconds until its deadline. Its P90 finish is at `remaining` over its speed, and after a change of `change_s`."""
    promised: bool = False
    visiting: bool = False


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Rivals for the slots of some kinds. Every kind has a column for each size."""

    rivals: Sequence[Rival]
    capacity: Sequence[int] = (4,)
    nodes: Sequence[int] = (2,)
    sizes: Sequence[int] = (1, 2, 4)
    coming: Sequence[int] = (0,)
    max_wait_s: float = 1800.0
    rows: tuple[Row, ...] = field(default=())

    @cached_property
    def slots(self) -> IntArray:
        return np.array(list(self.sizes) * len(self.capacity), dtype=np.int64)

    @cached_property
    def kinds(self) -> IntArray:
        return np.repeat(np.arange(len(self.capacity)), len(self.sizes))

    def column(self, size: int, kind: int = 0) -> int:
        return kind * len(self.sizes) + list(self.sizes).index(size) if size else NOTHING

    def of(self, read: Callable[[Rival], Any], kind: type = np.float64) -> Any:
        return np.array([read(one) for one in self.rivals], dtype=kind)

    @cached_property
    def given(self) -> RoundInput:
        slots = self.slots
        per_kind = tuple(
            Row(name=f"slots/{kind}", capacity=float(most), demand=np.where(self.kinds == kind, slots, 0.0))
            for kind, most in enumerate(self.capacity)
        )
        jobs = len(self.rivals)
        return RoundInput(
            configurations=Configurations(
                kinds=tuple(f"kind-{kind}" for kind in range(len(self.capacity))),
                kind=self.kinds,
                slots=slots,
                nodes=np.ones_like(slots),
                usd_per_h=np.zeros(len(slots)),
            ),
            rows=(*per_kind, *self.rows),
            goodput=np.array([100.0 * slots**one.scaling for one in self.rivals]).reshape(jobs, len(slots)),
            allowed=np.array([np.isin(slots, one.sizes) for one in self.rivals], dtype=np.bool_).reshape(
                jobs, len(slots)
            ),
            current=self.of(lambda one: self.column(one.holds, one.kind), np.int64),
            weight=self.of(lambda one: one.weight),
            age_s=self.of(lambda one: one.age_s),
            waited_s=self.of(lambda one: one.waited_s),
            served_s=np.zeros((jobs, len(self.capacity))),
            served_slot_s=np.zeros(jobs),
            changes=np.zeros(jobs, dtype=np.int64),
            change_s=self.of(lambda one: one.change_s),
            remaining=self.of(lambda one: one.remaining),
            requested_slots=np.ones(jobs, dtype=np.int64),
            job_class=np.arange(jobs),
        )

    @cached_property
    def tenure(self) -> Tenure:
        return Tenure(
            run_s=self.of(lambda one: one.run_s if one.holds else 0.0),
            min_run_s=self.of(lambda one: one.min_run_s),
            pinned=self.of(lambda one: one.pinned, np.bool_),
            rigid=self.of(lambda one: one.rigid, np.bool_),
            forced=self.of(lambda one: one.forced, np.bool_),
            priority=self.of(lambda one: one.priority),
            recent_s=self.of(lambda one: one.recent_s),
            coming=np.array(
                [*self.coming, *[0] * len(self.capacity)][: len(self.capacity)], dtype=np.float64
            ),
            max_wait_s=self.max_wait_s,
            leased=self.of(lambda one: one.leased, np.bool_),
            promised=self.of(lambda one: one.promised_slots, np.bool_),
            restart_s=self.of(lambda one: one.restart_s),
            rests_s=self.of(lambda one: one.rests_s),
            left_s=self.of(lambda one: one.reported_left_s),
        )

    @cached_property
    def evidence(self) -> Evidence:
        known = [np.isin(self.slots, one.known) for one in self.rivals]
        return Evidence(
            known=np.array(known, dtype=np.bool_).reshape(len(known), len(self.slots)),
            exempt=self.of(lambda one: one.exempt, np.bool_),
            entitled=self.of(lambda one: one.entitled, np.bool_),
            nodes=np.array([*self.nodes, *[2] * len(self.capacity)][: len(self.capacity)], dtype=np.int64),
        )

    @cached_property
    def deadlines(self) -> Deadlines:
        here = np.arange(len(self.slots)) == self.given.current[:, None]
        change_s = np.where(here, 0.0, self.given.change_s[:, None])
        late_s = self.given.remaining[:, None] / self.given.goodput + change_s
        own = [np.isin(self.slots, one.sizes) for one in self.rivals]
        return Deadlines(
            left_s=self.of(lambda one: one.left_s),
            late_s=np.where(np.array(own, dtype=np.bool_).reshape(late_s.shape), late_s, math.inf),
            may=self.given.allowed,
            promised=self.of(lambda one: one.promised, np.bool_),
            visiting=self.of(lambda one: one.visiting, np.bool_),
            priority=self.of(lambda one: one.priority),
        )

    @cached_property
    def seats(self) -> GuaranteedJobs:
        return guaranteed_jobs_of(self.given, self.tenure, solve, np.zeros(len(self.rivals), dtype=np.bool_))

    @cached_property
    def contest(self) -> Contest:
        return contend(self.given, self.tenure, self.evidence, solve, self.deadlines)

    def sizes_of(self, columns: IntArray) -> list[int]:
        """The sizes of columns (J,), 0 for none."""
        return np.append(self.slots, 0)[columns].tolist()

    def marked(self, mask: BoolArray, job: int = 0) -> list[int]:
        """The sizes of a job that a mask (J, C) marks."""
        return self.slots[mask[job]].tolist()


def running(holds: int, **fields: Any) -> Rival:
    return Rival(holds=holds, **fields)


def waiting(**fields: Any) -> Rival:
    return Rival(**fields)


def keeps_rows(given: RoundInput, chosen: IntArray) -> bool:
    """True if the choices exceed no row, counted without `Row.taken`."""
    for row in given.rows:
        counts = [True] * len(chosen) if row.jobs is None else row.jobs.tolist()
        taken = sum(
            float(row.demand[column])
            for column, counted in zip(chosen.tolist(), counts, strict=True)
            if column != NOTHING and counted
        )
        if taken > row.capacity + 1e-6:
            return False
    return True


@st.composite
def scenes(draw: st.DrawFn, kinds: int = 2) -> Scene:
    """Up to six rivals on one or two kinds; what they hold fits the capacity."""
    capacity = draw(st.lists(st.integers(1, 8), min_size=1, max_size=kinds))
    left = list(capacity)
    rivals = []
    for _ in range(draw(st.integers(0, 6))):
        sizes = tuple(sorted(draw(st.sets(st.sampled_from((1, 2, 4)), min_size=1))))
        kind = draw(st.integers(0, len(capacity) - 1))
        fitting = [size for size in sizes if size <= left[kind]]
        holds = draw(st.sampled_from((0, *fitting)))
        left[kind] -= holds
        rivals.append(
            Rival(
                holds=holds,
                kind=kind,
                sizes=sizes,
                known=tuple(draw(st.sets(st.sampled_from((1, 2, 4))))),
                priority=draw(st.sampled_from((0, 50, 100))),
                waited_s=0.0 if holds else draw(st.sampled_from((0.0, 100.0, 1800.0, 4000.0))),
                run_s=draw(st.sampled_from((0.0, 30.0, 600.0))),
                recent_s=draw(st.sampled_from((0.0, 5.0, 20.0))),
                change_s=draw(st.sampled_from((0.0, 0.5, 30.0))),
                pinned=bool(holds) and draw(st.booleans()),
                rigid=draw(st.booleans()),
                forced=bool(holds) and draw(st.booleans()),
                exempt=draw(st.booleans()),
                entitled=draw(st.booleans()),
            )
        )
    return Scene(
        rivals=rivals,
        capacity=capacity,
        nodes=[draw(st.integers(1, 3)) for _ in capacity],
        coming=[draw(st.integers(0, 2)) for _ in capacity],
    )


def totals(given: RoundInput, chosen: IntArray) -> FloatArray:
    """The slots (K,) of each kind that choices take."""
    return np.array([row.taken(chosen) for row in given.rows[: len(given.configurations.kinds)]])
