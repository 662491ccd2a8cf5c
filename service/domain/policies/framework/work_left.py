"""Remaining work of jobs of unknown length, learned from ended jobs: most jobs recur.

The total work of a class has a Dirichlet process as its prior (Ferguson, 1973). Its centre is the distribution of
run times over all classes, which in turn has a heavy tail as its prior: a job served for `t` seconds outlasts
another `u` seconds with probability `(t + 600) / (t + 600 + u)`. Given the work that a job has done, each ended
job of its class that took more counts as one, and the prior by its part beyond that work. A name is no proof: the ended
jobs of a class count from `LEAST_OWN_JOBS` on, and only those that ran the same command (`RoundInput.length_class`). The
length that a job declares itself always precedes them.

A job that reports its loss says more of its length than the run times of other classes. Its centre is therefore the
work at which its loss curve converges, times the distribution over all classes of how far ended jobs trained beyond
that point (`FinishedJobs.beyond`). No constant says when users stop training: ended jobs show it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from service.domain.policies.framework.policy import FinishedJobs, RoundInput
from service.domain.policies.framework.speedup import finite, known_length, length_class
from service.domain.shared.arrays import FloatArray, IntArray

VALUES: Final = 16
"""Number of equally likely values that stand for the distribution of a job's remaining work."""
OWN_JOBS: Final = 20
"""Maximum number of ended jobs of a class that count, the latest ones."""
LEAST_OWN_JOBS: Final = 3
"""Number of ended jobs of a class from which their work says something about the next one."""
_TYPICAL: Final = 64
"""Number of equally likely values that stand for the distribution over all classes."""
_PRIOR_JOBS: Final = 1.0
"""Number of ended jobs of its class that the prior of a job counts as."""
_TAIL_CLASSES: Final = 1.0
"""Number of classes that the heavy tail counts as in the prior."""
_TAIL_S: Final = 600.0
"""Run time in seconds that half of the jobs exceed under the heavy tail alone."""
_QUANTILES: Final = (np.arange(VALUES) + 0.5) / VALUES


def work_left(given: RoundInput, per_s: FloatArray) -> FloatArray | None:
    """Return equally likely values (J, VALUES) of each job's remaining reference samples, in ascending order.

    All values of a job of known length are equal. Return None if no job is known to have ended, or if the length of
    every job is known.

    Args:
        given: input of the round.
        per_s: (J,) reference samples per second by which seconds of service become work.
    """
    finished, rows = given.finished, np.flatnonzero(~known_length(given))
    if finished is None or not len(finished.work) or not len(rows):
        return None
    served = finite(given.served_s).sum(axis=1) * per_s
    done = served if given.done is None else np.where(given.done > 0, finite(given.done), served)
    left = np.repeat(finite(given.remaining)[:, None], VALUES, axis=1)
    converged = None if given.converged is None else given.converged[rows]
    left[rows] = _left_of_unknown(finished, length_class(given)[rows], done[rows], per_s[rows], converged)
    return left


def ranks(left_s: FloatArray) -> FloatArray:
    """Return the rank of each job (J,), from 1 for the longest time to go up to J for the shortest.

    A rank is one more than the expected number of other jobs that outlast the job. `left_s` (J, V) are equally
    likely seconds to go, independent between jobs. Of two equal times, either outlasts the other with probability 1/2.
    """
    every = np.sort(left_s, axis=None)
    below, up_to = (np.searchsorted(every, left_s, side=side) for side in ("left", "right"))
    longer = (every.size - (below + up_to) / 2) / max(left_s.shape[1], 1)
    # A job does not outlast itself, which the sum counts as one half on average.
    return np.asarray(longer.sum(axis=1) / max(left_s.shape[1], 1) + 0.5)


def _left_of_unknown(
    finished: FinishedJobs,
    job_class: IntArray,
    done: FloatArray,
    per_s: FloatArray,
    converged: FloatArray | None,
) -> FloatArray:
    """Return the values (n, VALUES) for jobs of these classes (n,) that have done this work (n,)."""
    own = _totals_of_classes(finished, job_class, per_s)
    totals, classes = _totals_of_all(finished, per_s, converged)
    scale = _TAIL_S * per_s + done
    tail = scale[:, None] * (1.0 / (1.0 - _QUANTILES) - 1.0)
    of_classes = classes / (classes + _TAIL_CLASSES)
    tail_weight = (1.0 - of_classes) * _TAIL_S * per_s / scale
    weight = np.concatenate(
        [
            np.isfinite(own).astype(np.float64),
            np.repeat(_PRIOR_JOBS * of_classes[:, None] / _TYPICAL, _TYPICAL, axis=1),
            np.repeat(_PRIOR_JOBS * tail_weight[:, None] / VALUES, VALUES, axis=1),
        ],
        axis=1,
    )
    values = np.concatenate([own - done[:, None], totals - done[:, None], tail], axis=1)
    return _quantiles(values, np.where(values > 0, weight, 0.0))


def _totals_of_classes(finished: FinishedJobs, job_class: IntArray, per_s: FloatArray) -> FloatArray:
    """Return the total work (n, OWN_JOBS) of the latest ended jobs of each class, NaN beyond them and for fewer than
    `LEAST_OWN_JOBS`.

    Where only the run time of a job is known, it stands for the work.
    """
    totals = np.full((len(job_class), OWN_JOBS), np.nan)
    for one in np.unique(job_class):
        members, rows = np.flatnonzero(finished.job_class == one)[-OWN_JOBS:], job_class == one
        if len(members) < LEAST_OWN_JOBS:
            continue
        work, run_s = finished.work[members], finished.run_s[members]
        totals[rows, : len(members)] = np.where(work > 0, work, run_s * per_s[rows, None])
    return totals


def _totals_of_all(
    finished: FinishedJobs, per_s: FloatArray, converged: FloatArray | None
) -> tuple[FloatArray, IntArray]:
    """Return equally likely totals (n, _TYPICAL) that the jobs of all classes suggest, and the number (n,) of classes.

    A job without a loss curve takes as long as ended jobs, and one with a curve trains as far beyond it as they do.
    """
    run_s, timed = _typical(finished.run_s, finished.job_class)
    totals, classes = run_s * per_s[:, None], np.full(len(per_s), timed)
    if converged is not None and finished.beyond is not None:
        beyond, fitted = _typical(finished.beyond, finished.job_class)
        curved = np.isfinite(converged) & (fitted > 0)
        totals[curved], classes[curved] = converged[curved, None] * beyond, fitted
    return totals, classes


def _typical(values: FloatArray, job_class: IntArray) -> tuple[FloatArray, int]:
    """Return equally likely values (_TYPICAL,) of an ended job of any class, and the number of classes with values.

    Every class counts the same, so that a class of many jobs does not hide the others. Values that are not positive
    are unknown; if all are, so are the results, 0.
    """
    known = np.isfinite(values) & (values > 0)
    if not known.any():
        return np.zeros(_TYPICAL), 0
    values = values[known]
    _, of, count = np.unique(job_class[known], return_inverse=True, return_counts=True)
    order = np.argsort(values, kind="stable")
    weight = np.cumsum(1.0 / count[of[order]])
    wanted = (np.arange(_TYPICAL) + 0.5) / _TYPICAL * weight[-1]
    return values[order][np.searchsorted(weight, wanted)], len(count)


def _quantiles(values: FloatArray, weight: FloatArray) -> FloatArray:
    """Return the values (n, VALUES) at evenly spaced quantiles of each row of weighted values (n, M)."""
    order = np.argsort(np.where(weight > 0, values, np.inf), axis=1, kind="stable")
    ascending = np.take_along_axis(values, order, axis=1)
    below = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    wanted = _QUANTILES * below[:, -1:]
    at = np.stack([(below < one[:, None]).sum(axis=1) for one in wanted.T], axis=1)
    return np.asarray(np.take_along_axis(ascending, at, axis=1))
