"""Whether the promises were kept, from evidence alone. Pure: each check takes values and returns what it found broken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from benchmarks.faulting.evidence import Ending, Finding, Left, Life, Result, Sealed, Sighting, Submission

ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
COUNT_TOLERANCE = 1e-6
"""A cell of the table is a sum of shares of gradients, right to rounding in double precision."""
LOSS_TOLERANCE = 1e-6
"""Relative. Other sizes add up in another order, in double precision; a sample more or less is 1e-3 and more."""
_SHOWN = 5


def lost_jobs(submissions: Iterable[Submission], endings: Sequence[Ending]) -> list[Finding]:
    """Acknowledged jobs that are not there, or did not end as they should: CANCELLED only if somebody asked for it."""
    by_id = {ending.job: ending for ending in endings}
    found = []
    for one in submissions:
        if one.job is None:
            continue
        ending = by_id.get(one.job)
        good = {"SUCCEEDED", "CANCELLED"} if one.may_be_cancelled else {"SUCCEEDED"}
        if ending is None:
            found.append(Finding("lost_jobs", one.name, f"{one.job} was acknowledged, and is unknown now"))
        elif ending.state not in good:
            found.append(Finding("lost_jobs", one.name, f"{one.job} is {ending.state}: {ending.message}"))
    return found


def doubled_jobs(submissions: Iterable[Submission], endings: Sequence[Ending]) -> list[Finding]:
    """Jobs that nobody submitted, or of which there are two for one submit (each has a name of its own)."""
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
    """Two processes that were alive on one slot at one time, whoever's they were."""
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
                sentence = f"{_who(longest)} was alive for {both_s:.2f} s beside {_who(life)}"
                found.append(Finding("double_slots", f"{node} slot {slot}", sentence))
            longest = max(longest, life, key=lambda one: one.seen_s)
    return found


def _who(life: Life) -> str:
    return f"{life.name} generation {life.generation} rank {life.rank} (process {life.pid})"


def lost_samples(job: str, result: Result) -> list[Finding]:
    """Samples of an epoch that the final weights have not seen, one finding for each."""
    return [
        Finding("lost_samples", job, f"epoch {epoch} sample {sample} went in {count:g} times")
        for epoch, sample, count in _cells(result, lambda counts: counts < 1 - COUNT_TOLERANCE)
    ]


def repeated_samples(job: str, result: Result) -> list[Finding]:
    """Samples of an epoch that the final weights have seen more than once."""
    return [
        Finding("repeated_samples", job, f"epoch {epoch} sample {sample} went in {count:g} times")
        for epoch, sample, count in _cells(result, lambda counts: counts > 1 + COUNT_TOLERANCE)
    ]


def _cells(result: Result, broken: object) -> list[tuple[int, int, float]]:
    assert callable(broken)
    counts = -result.table
    return [
        (int(epoch), int(sample), float(counts[epoch, sample]))
        for epoch, sample in np.argwhere(broken(counts))
    ]


def differing_losses(job: str, result: Result, undisturbed: Result) -> list[Finding]:
    """Epochs after which the loss is not that of the run that nobody disturbed."""
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
    """Checkpoints that a generation completed when a newer one of the job had completed one already."""
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
    """Jobs whose generation went back, or that came back from the dead: an old report was taken for news."""
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
    """Jobs that count as SUCCEEDED and have nothing to show for it.

    `results` are jobs with a last checkpoint, `finished` those of which a rank wrote that it came to its end.
    """
    succeeded = {ending.job for ending in endings if ending.state == "SUCCEEDED"}
    shown: Mapping[str, Collection[str]] = {"counted": results, "plain": finished}
    return [
        Finding(
            "lost_jobs", one.name, f"{one.job} is SUCCEEDED, and nothing shows that it ever came to its end"
        )
        for one in submissions
        if one.job in succeeded and one.job not in shown[one.script]
    ]


def left_behind(things: Iterable[Left]) -> list[Finding]:
    """What is there after the end and should not be."""
    return [Finding("left_behind", one.where, one.what) for one in things]
