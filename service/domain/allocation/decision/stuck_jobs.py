"""Jobs for which there are slots, but on nodes that cannot talk: others get these slots meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from service.domain.allocation.decision.guarantees import Shared, choose_within_guarantees
from service.domain.allocation.inputs.round import Round
from service.domain.allocation.knapsack.problem import NOTHING, Solve
from service.domain.allocation.placement.cluster_layout import places_of
from service.domain.allocation.placement.placement import Placement
from service.domain.policies.framework.policy import Policy


def choose_without_stuck(
    round_: Round, policy: Policy, solve: Solve, shared: Shared, placements: Mapping[str, Placement]
) -> tuple[Shared, Mapping[str, Placement]]:
    """Return the choices and placements of a second try without the jobs that have no placement.

    Those keep their empty placement, which says why. A job that then has none waits for the next round.
    """
    stuck = {job_id: one for job_id, one in placements.items() if one.parted and not one.allocation}
    if not stuck:
        return shared, placements
    given = round_.given
    out = np.array([job.id in stuck for job in round_.jobs])
    seats = None if given.seats is None else np.where(out, NOTHING, given.seats)
    smaller = replace(given, allowed=given.allowed & ~out[:, None], seats=seats)
    again = choose_within_guarantees(smaller, round_.tenancy, policy, round_.contest.solver(solve))
    return again, {**places_of(round_, [int(column) for column in again.choices.chosen]), **stuck}
