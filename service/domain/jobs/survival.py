"""Decision that the survivors of a loss go on in place, or not, and the backoff of changes whose new ranks fail."""

from __future__ import annotations

from dataclasses import dataclass

from headway.contract.spec import Retry
from service.domain.jobs.failures import RankExit, killed_by

_FIRST_GROWTH_BACKOFF_S = 10.0
LONGEST_GROWTH_BACKOFF_S = 600.0


@dataclass(frozen=True, slots=True)
class Survival:
    """Decision whether the survivors of a loss go on in place, with the reason if they do not."""

    in_place: bool
    why_not: str = ""


def is_loss(exit_: RankExit) -> bool:
    """Return True if a process was killed or lost with its node. An error of its script does not count."""
    return (exit_.exit_code is None or killed_by(exit_) is not None) and not exit_.completed


def decide_survival(
    *, live: bool, survivors: int, complete: bool, fits: bool, counted: bool, failures: int, retry: Retry
) -> Survival:
    """Decide whether `survivors` go on in place after a loss. `live`: their script supports that.

    `complete`: together they hold every part of the model, as copies where ranks are lost. `fits`: their memory is
    enough for it. With `counted`, the loss is one more infrastructure failure than the `failures` so far.
    """
    if not live:
        return Survival(in_place=False, why_not="its script does not support the loss of ranks in place")
    if survivors == 0:
        return Survival(in_place=False, why_not="no rank that holds its state is left")
    if not complete:
        return Survival(in_place=False, why_not="no remaining rank has a copy of a lost part of its model")
    if not fits:
        return Survival(in_place=False, why_not="the model does not fit the memory of the remaining slots")
    if counted and failures + 1 > retry.infrastructure:
        return Survival(in_place=False, why_not="it lost ranks repeatedly without progress in between")
    return Survival(in_place=True)


def counts_as_failure(samples: int, samples_at_loss: int | None) -> bool:
    """Return True if nothing was trained since the previous loss that the job survived.

    Only then a survived loss counts as a failure. A job that progresses between losses may lose ranks any
    number of times; a job in a crash loop may not.
    """
    return samples_at_loss is not None and samples <= samples_at_loss


def growth_backoff_s(failures: int) -> float:
    """Return the backoff in seconds after `failures` membership changes in a row whose new ranks did not come
    up.
    """
    doublings = min(failures - 1, 10)
    return float(min(_FIRST_GROWTH_BACKOFF_S * 2.0**doublings, LONGEST_GROWTH_BACKOFF_S))
