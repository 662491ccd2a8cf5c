"""Eligibility of each configuration for each job now, with the reason for every exclusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from service.domain.allocation.configurations.capacity import PoolCapacity
from service.domain.allocation.configurations.configurations import Columns
from service.domain.allocation.configurations.eligibility import Holding, backs_off, explores, is_left_over
from service.domain.allocation.configurations.masks import MeasuredConfigurations, allowed_by_spec
from service.domain.allocation.configurations.resuming import lacks_measurement, may_lose_its_work
from service.domain.allocation.limits.risk import saves
from service.domain.allocation.limits.spending import Prospects, SpendingBar, bars_of
from service.domain.cluster.snapshot import Snapshot
from service.domain.contention.rules import Contest
from service.domain.jobs.job import Job
from service.domain.perf.exploration import Exploration, credible, explore, optimistic_goodput
from service.domain.perf.tables import GoodputTable
from service.domain.shared.arrays import FloatArray, IntArray

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
    UNKNOWN_RESUME = 20


NOTE_OF = {SpendingBar.OVER_BUDGET: Note.OVER_BUDGET, SpendingBar.DEADLINE: Note.DEADLINE}


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
        hope: (J, C) the goodput for which jobs change (`exploration.hoped`).
    """

    codes: IntArray
    bars: IntArray
    hope: FloatArray


def notes_of(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    holdings: Mapping[str, Holding],
    rooms: Mapping[str, PoolCapacity],
    columns: Columns,
    current: IntArray,
    seen: MeasuredConfigurations,
    table: GoodputTable,
    prospects: Prospects,
) -> Notes:
    """Return the eligibility by specs, measurements so far, money and time, and the minimum gain of a change."""
    known = seen.tried | seen.alike
    high = credible(
        columns.by_kind, goodput=prospects.goodput, low=prospects.low, high=prospects.high, known=known
    )
    hope = optimistic_goodput(columns.by_kind, prospects.goodput, high, known)
    allowed = allowed_by_spec(jobs, holdings, columns)
    for row, (job, holding) in enumerate(zip(jobs, holdings.values(), strict=True)):
        stays = not is_left_over(job, holding.size) or backs_off(job, snapshot)
        if current[row] >= 0 and stays:
            allowed[row, current[row]] = True
    explored = explore(
        columns.by_kind,
        allowed=allowed,
        tried=seen.tried,
        alike=seen.alike,
        current=current,
        goodput=table.goodput,
        high=credible(columns.by_kind, goodput=table.goodput, low=table.low, high=table.high, known=known),
    )
    notes = np.select(
        [explored.mask, explored.code == Exploration.TOO_FAR, explored.code == Exploration.NOT_WORTH_IT],
        [Note.OFFERED, Note.TOO_FAR, Note.NOT_WORTH_IT],
        Note.NOT_ALLOWED,
    ).astype(np.int64)
    free = np.array([not explores(job, snapshot) for job in jobs], dtype=np.bool_)
    notes[free[:, None] & allowed] = Note.OFFERED
    open_to = notes == Note.OFFERED
    bars = bars_of(
        snapshot,
        jobs,
        columns,
        rooms,
        open_to=open_to,
        allowed=allowed,
        current=current,
        prospects=prospects,
    )
    for bar, note in NOTE_OF.items():
        notes[open_to & (bars == bar)] = note
    for row, (job, holding) in enumerate(zip(jobs, holdings.values(), strict=True)):
        if holding.size:
            now = int(current[row])
            bar = SpendingBar(bars[row, now]) if now >= 0 else SpendingBar.NONE
            measured = now >= 0 and bool(seen.tried[row, now])
            notes[row] = _of_running(
                snapshot, job, holding.size, notes[row], columns, now, hope[row], bar, measured=measured
            )
    return Notes(codes=notes, bars=bars, hope=hope)


def contested(codes: IntArray, contest: Contest) -> IntArray:
    """Return the notes (J, C) after the rules for competing jobs."""
    offered = codes == Note.OFFERED
    return np.select(
        [offered & contest.reserved[:, None], offered & contest.unproven, offered & contest.resting],
        [Note.RESERVED, Note.UNPROVEN, Note.AT_REST],
        codes,
    ).astype(np.int64)


def _of_running(
    snapshot: Snapshot,
    job: Job,
    size: int,
    notes: IntArray,
    columns: Columns,
    current: int,
    goodput: FloatArray,
    bar: SpendingBar,
    *,
    measured: bool,
) -> IntArray:
    """Return the notes (C,) of a job that holds slots: it does not change to an excluded configuration by its
    own choice.

    With a `bar` on its present configuration it may leave at once. `measured` is True if its speed there is
    known.
    """
    slots = columns.configurations.slots
    offer = notes == Note.OFFERED
    pinned = slots == (job.pinned_size or 0)
    notes = notes.copy()
    if current >= 0 and not is_left_over(job, size) and bar is SpendingBar.NONE:
        no_gain = (slots >= size) & (goodput < MIN_GAIN * goodput[current])
        no_gain &= ~saves(columns, current, MIN_GAIN)
        notes[offer & ~pinned & no_gain] = Note.NO_GAIN
        if is_young(job, snapshot):
            notes[offer & ~pinned & (slots > size)] = Note.TOO_YOUNG
        if may_lose_its_work(job):
            notes[offer & ~pinned & (slots >= size)] = Note.UNKNOWN_RESUME
        if lacks_measurement(job, measured=measured):
            notes[offer & ~pinned & (slots > size)] = Note.NOT_MEASURED
    waits = backs_off(job, snapshot)
    if waits:
        # A configuration in another pool needs new ranks.
        elsewhere = (
            (columns.parts > columns.parts[current]).any(axis=1) if current >= 0 else np.zeros_like(offer)
        )
        notes[offer & ((slots > size) | elsewhere)] = Note.BACK_OFF
    if current >= 0:
        leaves = is_left_over(job, size) and job.pinned_size != size and not waits
        notes[current] = Note.NOT_ALLOWED if leaves else Note.CURRENT
        # Configurations within its present slots are certainly available, so it need not keep slots that it
        # cannot pay for.
        within = (columns.parts <= columns.parts[current]).all(axis=1) & (notes == Note.OFFERED)
        if bar is SpendingBar.OVER_BUDGET and within.any() and not leaves:
            notes[current] = Note.OVER_BUDGET
    return notes
