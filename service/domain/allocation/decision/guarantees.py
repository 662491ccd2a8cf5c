"""Guarantees: corrections of a policy's choices for projects with less than their guaranteed and wanted
slots.

In a round without claims, the policy's choices remain unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Row, Solve
from service.domain.allocation.limits.caps import choose_within_caps, joined, left_by, only, without
from service.domain.allocation.limits.tenancy import GuaranteeClaim, Tenancy
from service.domain.policies.framework.policy import Choices, Policy, RoundInput
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_ROUNDS = 8
"""Maximum number of repetitions, since jobs that get slots may take them from others."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Shared:
    """Choices that keep every guarantee. `given_up_for` maps a job's row to the claim for which it gave up
    slots.
    """

    choices: Choices
    given_up_for: Mapping[int, GuaranteeClaim] = field(default_factory=dict)


def choose_within_guarantees(given: RoundInput, tenancy: Tenancy, policy: Policy, solve: Solve) -> Shared:
    """Return the policy's choices, adjusted so that other jobs share what a project's claim leaves.

    They first shrink, by the policy and their weights. Jobs whose smallest sizes fit a guarantee get at least
    those. Running jobs keep at least their smallest size as far as there is capacity, in descending order of
    weight. Slots that the claimant's jobs do not take stay with the other jobs.
    """
    slots = given.configurations.slots
    first = choose_within_caps(given, policy, solve)
    claims = [claim for claim in tenancy.claims if claim.is_raised(given.current, first.chosen, slots)]
    stay = tenancy.too_large(given)
    for claim in claims:
        stay |= ~claim.members
    stay &= given.current != NOTHING
    short = [claim for claim in claims if claim.is_short(first.chosen, slots)]
    claimed, choices = given, first
    if short:
        claimed = _with_rows(given, [claim.lent for claim in short])
        choices = choose_within_caps(claimed, policy, solve)
    taken = [claim.taken(choices.chosen, slots) for claim in short]
    if any(count < claim.wanted for claim, count in zip(short, taken, strict=True)):
        lending = [claim.lending(count) for claim, count in zip(short, taken, strict=True)]
        claimed = _with_rows(given, lending)
        choices = choose_within_caps(claimed, policy, solve)
    choices = _seated(claimed, claims, stay, choices, policy, solve)
    return Shared(choices, _given_up(given, claims, first.chosen, choices.chosen))


def _with_rows(given: RoundInput, rows: Sequence[Row]) -> RoundInput:
    return replace(given, rows=(*given.rows, *rows))


def _seated(
    given: RoundInput,
    claims: Sequence[GuaranteeClaim],
    stay: BoolArray,
    first: Choices,
    policy: Policy,
    solve: Solve,
) -> Choices:
    """Return the first choices, adjusted so that protected jobs have slots.

    As many of the jobs that should `stay` (J,) as possible have slots too.
    """
    slots = given.configurations.slots
    must: dict[int, None] = {}
    keep: dict[int, None] = {}
    rest = choices = first
    kept: dict[int, int] = {}
    for _ in range(_ROUNDS):
        unmet = [row for claim in claims for row in claim.unmet(choices.chosen, slots)]
        before = len(must), len(keep)
        must |= dict.fromkeys(unmet)
        keep |= dict.fromkeys(np.flatnonzero(stay & (choices.chosen == NOTHING)).tolist())
        if (len(must), len(keep)) == before:
            break
        kept = _seats(given, [*must, *_heaviest(given, [row for row in keep if row not in must])])
        rest = choose_within_caps(without(given, kept), policy, solve) if kept else rest
        choices = joined(first, rest, kept) if kept else rest
    if not kept:
        return choices
    return joined(first, rest, _grown(given, choices.chosen, kept, first.chosen))


def _heaviest(given: RoundInput, rows: Iterable[int]) -> list[int]:
    """Return jobs in descending order of weight."""
    weight = given.weight if given.share is None else given.weight * given.share
    return sorted(rows, key=lambda row: (-weight[row], row))


def _seats(given: RoundInput, rows: Sequence[int]) -> dict[int, int]:
    """Return the smallest column of each of these jobs, in their order, as long as all rows are kept."""
    bears = left_by(given, only(given.current, {}))
    counts, demand = _demand(given)
    seats = {}
    for job in rows:
        may = np.flatnonzero(given.allowed[job])
        takes = np.where(counts[:, job, None], demand[:, may], 0.0)
        fits = (takes <= bears[:, None] + _ROUNDING).all(axis=0)
        if fits.any():
            # Among equal sizes the column that takes least of the scarcest row wins.
            scarce = (takes / np.maximum(bears[:, None], _ROUNDING)).max(axis=0, initial=0.0)
            order = np.lexsort((scarce, given.configurations.slots[may], ~fits))
            seats[job] = int(may[order[0]])
            bears = bears - takes[:, order[0]]
    return seats


def _grown(given: RoundInput, chosen: IntArray, kept: Mapping[int, int], first: IntArray) -> dict[int, int]:
    """Return the seats, each as large as the remaining capacity allows.

    No seat exceeds the policy's first choice or what the job holds, whichever is larger.
    """
    slots = given.configurations.slots
    left = left_by(given, chosen)
    counts, demand = _demand(given)
    grown = dict(kept)
    for job in _heaviest(given, kept):
        most = max(
            (int(slots[column]) for column in (first[job], given.current[job]) if column >= 0), default=0
        )
        may = np.flatnonzero(given.allowed[job] & (slots <= most) & (slots > slots[kept[job]]))
        more = np.where(counts[:, job, None], demand[:, may] - demand[:, [kept[job]]], 0.0)
        may, more = may[(fits := (more <= left[:, None] + _ROUNDING).all(axis=0))], more[:, fits]
        if len(may):
            best = int(np.lexsort((-given.goodput[job, may], -slots[may]))[0])
            grown[job] = int(may[best])
            left = left - more[:, best]
    return grown


def _demand(given: RoundInput) -> tuple[BoolArray, FloatArray]:
    """Return the jobs (R, J) that the rows count, and the demands (R, C)."""
    jobs = len(given.weight)
    counts = np.array([np.ones(jobs, dtype=np.bool_) if row.jobs is None else row.jobs for row in given.rows])
    demand = np.array([row.demand for row in given.rows], dtype=np.float64)
    shape = (len(given.rows), len(given.configurations.slots))
    return counts.reshape(len(given.rows), jobs), demand.reshape(shape)


def _given_up(
    given: RoundInput, claims: Sequence[GuaranteeClaim], first: IntArray, chosen: IntArray
) -> dict[int, GuaranteeClaim]:
    """Return the jobs that get fewer slots than they hold, or than the policy alone gives, with the claim
    responsible.
    """
    slots = np.append(given.configurations.slots, 0)
    less = np.flatnonzero(slots[chosen] < np.maximum(slots[first], slots[given.current]))
    gaining = {}
    for job in less.tolist():
        for claim in claims:
            if not claim.members[job]:
                gaining[job] = claim
                break
    return gaining
