"""Eligibility of each configuration for each job now, with the reason for every exclusion."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from service.domain.allocation.configurations.eligibility import backs_off, explores, is_left_over
from service.domain.allocation.configurations.masks import allowed_by_spec
from service.domain.allocation.configurations.resuming import lacks_measurement, may_lose_its_work
from service.domain.allocation.configurations.scope import RoundScope
from service.domain.allocation.inputs.estimates import Estimates
from service.domain.allocation.limits.risk import saves
from service.domain.allocation.limits.spending import SpendingBar, bars_of
from service.domain.cluster.snapshot import Snapshot
from service.domain.contention.arrivals import may_not_last
from service.domain.contention.rules import Contest
from service.domain.jobs.job import Job
from service.domain.jobs.parallelism import lacks_memory
from service.domain.perf.exploration import Exploration, credible, explore, optimistic_goodput
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

MIN_GAIN = 1.05
"""Minimum ratio of goodput at which a running job grows, or moves by its own choice."""
MIN_RUNTIME_S = 30.0
"""Seconds after a start or change during which a job does not change again by its own choice.

It may still be shrunk to free slots. After a loss the limit does not apply: the job should regain its size at
once.
"""


class Note(IntEnum):
    """Eligibility of a configuration for a job now."""

    NOT_ALLOWED = 0
    OFFERED = 1
    CURRENT = 2
    TOO_FAR = 3
    NOT_WORTH_IT = 4
    BACK_OFF = 5
    TOO_YOUNG = 6
    NO_GAIN = 7
    NOT_MEASURED = 8
    OVER_BUDGET = 9
    DEADLINE = 10
    UNPROVEN = 11
    AT_REST = 12
    RESERVED = 13
    TOO_LATE = 14
    OTHER_MARKET = 15
    NO_MEMORY = 16
    UNKNOWN_RESUME = 20
    MAY_NOT_LAST = 21


NOTE_OF = {
    SpendingBar.OVER_BUDGET: Note.OVER_BUDGET,
    SpendingBar.DEADLINE: Note.DEADLINE,
    SpendingBar.MARKET: Note.OTHER_MARKET,
}


def is_young(job: Job, snapshot: Snapshot) -> bool:
    """Return True if the job was started or changed less than `MIN_RUNTIME_S` ago, and not because of a loss."""
    ran_s = (snapshot.now - job.state_since).total_seconds()
    # A change may be slightly later than the snapshot. A much later time comes from a clock that was set
    # back.
    return abs(ran_s) < MIN_RUNTIME_S and not (job.live and job.samples_at_loss is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Eligibility of the configurations (C,) for the jobs (J,).

    Attributes:
        codes: (J, C) a `Note` for each.
        bars: (J, C) a `SpendingBar` for each: the limits of money and time.
        hope: (J, C) the goodput for which jobs change (`exploration.optimistic_goodput`).
    """

    codes: IntArray
    bars: IntArray
    hope: FloatArray

    @property
    def allowed(self) -> BoolArray:
        """Mask (J, C) of the configurations that a policy may choose."""
        return np.isin(self.codes, (Note.OFFERED, Note.CURRENT))


def notes_of(scope: RoundScope, estimates: Estimates) -> Notes:
    """Return the eligibility by specs, measurements so far, money and time, and the minimum gain of a change."""
    by_kind, current = scope.columns.by_kind, scope.current
    table, prospects, measured = estimates.table, estimates.prospects, estimates.measured
    high = credible(
        by_kind, goodput=prospects.goodput, low=prospects.low, high=prospects.high, known=measured.known
    )
    hope = optimistic_goodput(by_kind, prospects.goodput, high, measured.known)
    allowed = _allowed_or_held(scope)
    explored = explore(
        by_kind,
        allowed=allowed,
        tried=measured.tried,
        alike=measured.alike,
        current=current,
        goodput=table.goodput,
        high=credible(by_kind, goodput=table.goodput, low=table.low, high=table.high, known=measured.known),
    )
    codes = np.select(
        [explored.mask, explored.code == Exploration.TOO_FAR, explored.code == Exploration.NOT_WORTH_IT],
        [Note.OFFERED, Note.TOO_FAR, Note.NOT_WORTH_IT],
        Note.NOT_ALLOWED,
    ).astype(np.int64)
    free = np.array([not explores(job, scope.snapshot) for job in scope.jobs], dtype=np.bool_)
    codes[free[:, None] & allowed] = Note.OFFERED
    offered = codes == Note.OFFERED
    bars = bars_of(
        scope.snapshot,
        scope.jobs,
        scope.columns,
        scope.capacities,
        open_to=offered,
        allowed=allowed,
        current=current,
        prospects=prospects,
    )
    for bar, note in NOTE_OF.items():
        codes[offered & (bars == bar)] = note
    codes[(codes != Note.NOT_ALLOWED) & _without_memory(scope)] = Note.NO_MEMORY
    brief = may_not_last(scope)
    for row, holding in enumerate(scope.holdings.values()):
        if holding.size:
            held = int(current[row])
            codes[row] = _of_running(
                scope,
                row,
                codes[row],
                hope[row],
                brief=brief[row],
                bar=SpendingBar(bars[row, held]) if held >= 0 else SpendingBar.NONE,
                measured=held >= 0 and bool(measured.tried[row, held]),
            )
    return Notes(codes=codes, bars=bars, hope=hope)


def _without_memory(scope: RoundScope) -> BoolArray:
    """Return the configurations (J, C) at whose sizes sharded jobs need more memory than their devices have."""
    slots = scope.columns.configurations.slots
    lacking = np.zeros((len(scope.jobs), len(slots)), dtype=np.bool_)
    for row, job in enumerate(scope.jobs):
        if job.progress.memory is not None:
            lacking[row] = np.isin(slots, [size for size in job.sizes if lacks_memory(job, size)])
    return lacking


def _allowed_or_held(scope: RoundScope) -> BoolArray:
    """Return the configurations (J, C) that the specs allow, and those that jobs hold and need not leave."""
    allowed = allowed_by_spec(scope)
    for row, (job, holding) in enumerate(zip(scope.jobs, scope.holdings.values(), strict=True)):
        stays = not is_left_over(job, holding.size) or backs_off(job, scope.snapshot)
        if scope.current[row] >= 0 and stays:
            allowed[row, scope.current[row]] = True
    return allowed


def contested(codes: IntArray, contest: Contest) -> IntArray:
    """Return the notes (J, C) after the rules for competing jobs."""
    offered = codes == Note.OFFERED
    return np.select(
        [
            offered & contest.too_late,
            offered & contest.reserved[:, None],
            offered & contest.unproven,
            offered & contest.resting,
        ],
        [Note.TOO_LATE, Note.RESERVED, Note.UNPROVEN, Note.AT_REST],
        codes,
    ).astype(np.int64)


def _of_running(
    scope: RoundScope,
    row: int,
    notes: IntArray,
    goodput: FloatArray,
    *,
    brief: BoolArray,
    bar: SpendingBar,
    measured: bool,
) -> IntArray:
    """Return the notes (C,) of a job that holds slots: it does not change to an excluded configuration by its
    own choice.

    With a `bar` on its present configuration it may leave at once. `measured` is True if its speed there is
    known. `brief` (C,) are the sizes that it would probably leave soon (`contention.arrivals`).
    """
    job, columns, current = scope.jobs[row], scope.columns, int(scope.current[row])
    slots, size = columns.configurations.slots, scope.holdings[job.id].size
    left_over = is_left_over(job, size)
    offer = notes == Note.OFFERED
    own_choice = offer & (slots != (job.pinned_size or 0))
    notes = notes.copy()
    if current >= 0 and not left_over and bar is SpendingBar.NONE:
        no_gain = (slots >= size) & (goodput < MIN_GAIN * goodput[current])
        notes[own_choice & brief] = Note.MAY_NOT_LAST
        notes[own_choice & no_gain & ~saves(columns, current, MIN_GAIN)] = Note.NO_GAIN
        if is_young(job, scope.snapshot):
            notes[own_choice & (slots > size)] = Note.TOO_YOUNG
        if may_lose_its_work(job):
            notes[own_choice & (slots >= size)] = Note.UNKNOWN_RESUME
        if lacks_measurement(job, measured=measured):
            notes[own_choice & (slots > size)] = Note.NOT_MEASURED
    waits = backs_off(job, scope.snapshot)
    if waits:
        # A configuration in another pool needs new ranks.
        elsewhere = (
            (columns.parts > columns.parts[current]).any(axis=1) if current >= 0 else np.zeros_like(offer)
        )
        notes[offer & ((slots > size) | elsewhere)] = Note.BACK_OFF
    if current >= 0:
        leaves = left_over and job.pinned_size != size and not waits
        notes[current] = Note.NOT_ALLOWED if leaves else Note.CURRENT
        # Configurations within its present slots are certainly available, so it need not keep slots that it
        # cannot pay for.
        within = (columns.parts <= columns.parts[current]).all(axis=1) & (notes == Note.OFFERED)
        if bar is SpendingBar.OVER_BUDGET and within.any() and not leaves:
            notes[current] = Note.OVER_BUDGET
    return notes
