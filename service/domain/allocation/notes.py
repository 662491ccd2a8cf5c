"""Which configurations may be chosen for each job now, and why the others may not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from service.domain.allocation.columns import Columns
from service.domain.allocation.eligibility import Holding, backs_off, explores, is_left_over, is_silent
from service.domain.allocation.masks import Seen, allowed_by_spec
from service.domain.allocation.risk import saves
from service.domain.allocation.rooms import Room
from service.domain.allocation.spending import Bar, Prospects, bars_of
from service.domain.arrays import FloatArray, IntArray
from service.domain.cluster import Snapshot
from service.domain.jobs import Job
from service.domain.perf.exploration import Exploration, explore, hoped
from service.domain.perf.tables import GoodputTable

MIN_GAIN = 1.05
"""A running job grows, or moves by its own choice, only for at least this factor of goodput."""
MIN_RUNTIME_S = 30.0
"""A job that was just started or changed is not changed again by its own choice; it may be shrunk to make room. After a
loss this does not hold: what was lost is to come back at once.
"""


class Note(IntEnum):
    """Why a configuration may be chosen for a job now, or not."""

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


NOTE_OF = {Bar.OVER_BUDGET: Note.OVER_BUDGET, Bar.DEADLINE: Note.DEADLINE}


def is_young(job: Job, snapshot: Snapshot) -> bool:
    """Whether the job was only just started or changed, and not because of a loss."""
    ran_s = (snapshot.now - job.state_since).total_seconds()
    # A change may be a little later than the snapshot; one that is much later was noted by a clock that was set back.
    return abs(ran_s) < MIN_RUNTIME_S and not (job.live and job.samples_at_loss is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What jobs (J,) may choose now among the configurations (C,).

    Attributes:
        codes: (J, C) a `Note` for each.
        bars: (J, C) a `Bar` for each: what money or time forbids.
        hope: (J, C) the goodput for which jobs change (`exploration.hoped`).
    """

    codes: IntArray
    bars: IntArray
    hope: FloatArray


def notes_of(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    holdings: Mapping[str, Holding],
    rooms: Mapping[str, Room],
    columns: Columns,
    current: IntArray,
    seen: Seen,
    table: GoodputTable,
    prospects: Prospects,
) -> Notes:
    """What specs, what was tried up to now, money and time, and a gain that is too small leave."""
    hope = hoped(columns.by_kind, prospects.goodput, prospects.high, seen.tried | seen.alike)
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
        high=table.high,
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
            bar = Bar(bars[row, now]) if now >= 0 else Bar.NONE
            notes[row] = _of_running(snapshot, job, holding.size, notes[row], columns, now, hope[row], bar)
    return Notes(codes=notes, bars=bars, hope=hope)


def _of_running(
    snapshot: Snapshot,
    job: Job,
    size: int,
    notes: IntArray,
    columns: Columns,
    current: int,
    goodput: FloatArray,
    bar: Bar,
) -> IntArray:
    """The notes (C,) of a job that holds slots: what it should not change to by its own choice. With a `bar` on what it
    has, it should not wait to leave that.
    """
    slots = columns.configurations.slots
    offer = notes == Note.OFFERED
    pinned = slots == (job.pinned_size or 0)
    notes = notes.copy()
    if current >= 0 and not is_left_over(job, size) and bar is Bar.NONE:
        no_gain = (slots >= size) & (goodput < MIN_GAIN * goodput[current])
        no_gain &= ~saves(columns, current, MIN_GAIN)
        notes[offer & ~pinned & no_gain] = Note.NO_GAIN
        if is_young(job, snapshot):
            notes[offer & ~pinned & (slots > size)] = Note.TOO_YOUNG
        if is_silent(job, snapshot) and job.generation > 1:
            notes[offer & ~pinned & (slots > size)] = Note.NOT_MEASURED
    waits = backs_off(job, snapshot)
    if waits:
        # Whatever lies in another pool needs new ranks.
        elsewhere = (
            (columns.parts > columns.parts[current]).any(axis=1) if current >= 0 else np.zeros_like(offer)
        )
        notes[offer & ((slots > size) | elsewhere)] = Note.BACK_OFF
    if current >= 0:
        leaves = is_left_over(job, size) and job.pinned_size != size and not waits
        notes[current] = Note.NOT_ALLOWED if leaves else Note.CURRENT
        # What lies within what it holds is there for certain: it need not keep what it cannot pay.
        within = (columns.parts <= columns.parts[current]).all(axis=1) & (notes == Note.OFFERED)
        if bar is Bar.OVER_BUDGET and within.any() and not leaves:
            notes[current] = Note.OVER_BUDGET
    return notes
