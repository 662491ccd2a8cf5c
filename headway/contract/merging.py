"""Messages of progress that follow one another, made one that says the same."""

from __future__ import annotations

from dataclasses import replace

from headway.contract.runtime import Progress

_SAME = ("rank", "generation", "global_batch", "local_batch", "accumulation")
"""Steps add up where all of these are the same."""


def add_up(before: Progress, after: Progress) -> Progress | None:
    """Both in one: their statistics are sums, and of everything else what was said last counts. None if they are about
    different things, or compare ranks: it counts how many in a row say the same of them.
    """
    if before.rank_sample_s or after.rank_sample_s:
        return None
    if any(getattr(before, name) != getattr(after, name) for name in _SAME):
        return None
    return replace(
        after,
        steps=before.steps + after.steps,
        step_s_sum=before.step_s_sum + after.step_s_sum,
        step_s_squares=before.step_s_squares + after.step_s_squares,
        sync_s_sum=before.sync_s_sum + after.sync_s_sum,
        gradient_sqr=before.gradient_sqr if after.gradient_sqr is None else after.gradient_sqr,
        gradient_var=before.gradient_var if after.gradient_var is None else after.gradient_var,
    )
