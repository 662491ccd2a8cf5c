"""Checks of the guarantees on the evidence of a run. Each check is a pure function that returns the violations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.faulting.evidence import Ending, Finding, Left, Life, Result, Sealed, Sighting, Submission

ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
COUNT_TOLERANCE = 1e-6
"""Tolerance for a cell of the table, which is a sum of shares of gradients in double precision."""
LOSS_TOLERANCE = 1e-6
"""Relative tolerance for losses. Other sizes sum in another order; one sample more or less changes a loss by 1e-3."""
_SHOWN = 5


def lost_jobs(submissions: Iterable[Submission], endings: Sequence[Ending]) -> list[Finding]:
    """Return acknowledged jobs that are unknown or ended in a wrong state; CANCELLED is right only if a user cancelled."""
    by_id = {ending.job: ending for ending in endings}
    found = []
    for one in submissions:
        if one.job is None:
            continue
        ending = by_id.get(one.job)
        good = {"SUCCEEDED", "CANCELLED"} if one.may_be_cancelled else {"SUCCEEDED"}
        if ending is None:
            found.append(Finding("lost_jobs", one.name, f"{one.job} was acknowledged, but is unknown now"))
        elif ending.state not in good:
            found.append(Finding("lost_jobs", one.name, f"{one.job} is {ending.state}: {ending.message}"))
    return found


def doubled_jobs(submissions: Iterable[Submission], endings: Sequence[Ending]) -> list[Finding]:
    """Return jobs without a submit, or with several jobs for one submit. Each submit has a unique name."""
    wanted = {one.name for one in submissions}
    counts: dict[str, int] = defaultdict(int)
    for ending in endings:
        counts[ending.name] += 1
    return [
        Finding(
            "doubled_jobs", name, f"there are {count} jobs of this name, and {int(name in wanted)} submits"
        )
        for name, count in counts.items()
        if count > int(name in wanted)
    ]


def double_slots(lives: Sequence[Life]) -> list[Finding]:
    """Return pairs of processes, of any jobs, that were alive on one slot at the same time."""
    by_slot: dict[tuple[str, int], list[Life]] = defaultdict(list)
    for life in lives:
        by_slot[life.node, life.slot].append(life)
    found = []
    for (node, slot), there in by_slot.items():
        there.sort(key=lambda life: life.born_s)
        longest = there[0]
        for life in there[1:]:
            if life.born_s < longest.seen_s:
                both_s = min(longest.seen_s, life.seen_s) - life.born_s
                sentence = f"{_describe(longest)} was alive for {both_s:.2f} s beside {_describe(life)}"
                found.append(Finding("double_slots", f"{node} slot {slot}", sentence))
            longest = max(longest, life, key=lambda one: one.seen_s)
    return found


def _describe(life: Life) -> str:
    return f"{life.name} generation {life.generation} rank {life.rank} (process {life.pid})"


def lost_samples(job: str, result: Result) -> list[Finding]:
    """Return the samples of an epoch that the final weights have not seen, one finding for each."""
    return [
        Finding("lost_samples", job, f"epoch {epoch} sample {sample} was trained on {count:g} times")
        for epoch, sample, count in _cells(result, lambda counts: counts < 1 - COUNT_TOLERANCE)
    ]


def repeated_samples(job: str, result: Result) -> list[Finding]:
    """Return the samples of an epoch that the final weights have seen more than once."""
    return [
        Finding("repeated_samples", job, f"epoch {epoch} sample {sample} was trained on {count:g} times")
        for epoch, sample, count in _cells(result, lambda counts: counts > 1 + COUNT_TOLERANCE)
    ]


def _cells(
    result: Result, broken: Callable[[NDArray[np.float64]], NDArray[np.bool_]]
) -> list[tuple[int, int, float]]:
    """Return epoch, sample and count of the cells of the table for which `broken` is true."""
    counts = -result.table
    return [
        (int(epoch), int(sample), float(counts[epoch, sample]))
        for epoch, sample in np.argwhere(broken(counts))
    ]


def differing_losses(job: str, result: Result, undisturbed: Result) -> list[Finding]:
    """Return the epochs after which the loss differs from that of the undisturbed run."""
    if result.losses.shape != undisturbed.losses.shape:
        sentence = f"{result.losses.shape[0]} epochs instead of {undisturbed.losses.shape[0]}"
        return [Finding("differing_losses", job, sentence)]
    far = ~np.isclose(result.losses, undisturbed.losses, rtol=LOSS_TOLERANCE, atol=0.0)
    return [
        Finding(
            "differing_losses",
            job,
            f"{result.losses[epoch]:.9g} after epoch {epoch} instead of {undisturbed.losses[epoch]:.9g}",
        )
        for epoch in np.flatnonzero(far)[:_SHOWN]
    ]


def stale_checkpoints(sealed: Sequence[Sealed]) -> list[Finding]:
    """Return the checkpoints that a generation completed after one of a newer generation of the job."""
    found = []
    newest: dict[str, Sealed] = {}
    for one in sorted(sealed, key=lambda one: one.at_s):
        before = newest.get(one.job)
        if before is not None and before.generation > one.generation:
            sentence = (
                f"generation {one.generation} wrote epoch {one.epoch}, {one.samples} samples, "
                f"{one.at_s - before.at_s:.3f} s after generation {before.generation} had written"
            )
            found.append(Finding("stale_writes", one.job, sentence))
        newest[one.job] = one if before is None or one.generation >= before.generation else before
    return found


def stale_states(sightings: Sequence[Sighting]) -> list[Finding]:
    """Return jobs whose generation decreased, or that left a final state: the service accepted an old report."""
    found = []
    by_job: dict[str, list[Sighting]] = defaultdict(list)
    for sighting in sightings:
        by_job[sighting.job].append(sighting)
    for job, seen in by_job.items():
        for before, after in pairwise(seen):
            if after.generation < before.generation:
                sentence = f"generation {after.generation} was shown after {before.generation}"
                found.append(Finding("stale_writes", job, sentence))
            if before.state in ENDED and after.state != before.state:
                found.append(Finding("stale_writes", job, f"it was {before.state}, and then {after.state}"))
    return found


def unfinished_work(
    submissions: Iterable[Submission],
    endings: Sequence[Ending],
    results: Collection[str],
    finished: Collection[str],
) -> list[Finding]:
    """Return SUCCEEDED jobs without evidence of their end.

    `results` are the jobs with a last checkpoint, and `finished` those of which a rank recorded its end.
    """
    succeeded = {ending.job for ending in endings if ending.state == "SUCCEEDED"}
    shown: Mapping[str, Collection[str]] = {"counted": results, "plain": finished}
    return [
        Finding("lost_jobs", one.name, f"{one.job} is SUCCEEDED, but there is no evidence that it finished")
        for one in submissions
        if one.job in succeeded and one.job not in shown[one.script]
    ]


def left_behind(things: Iterable[Left]) -> list[Finding]:
    """Return a finding for each remainder of the cluster."""
    return [Finding("left_behind", one.where, one.what) for one in things]
