"""Gradient noise: the share of signal in a gradient, from norms of means over batches of two sizes.

G is the true gradient, tr the trace of the covariance of one sample's gradient. The mean g of b samples has

    E|g|^2  =  |G|^2 + tr / b                                                                          (1)

so the squared norms of two means over different numbers of samples give both unknowns. With n units (ranks)
of b_i samples, B in all, weights l_i = b_i / B, means g_i and g = sum l_i g_i, the weighted moment

    A  =  sum l_i |g_i|^2,   E A  =  |G|^2 + sum (b_i / B) (tr / b_i)  =  |G|^2 + tr / (B / n)         (2)

is the value of (1) for a batch of B / n samples, however uneven the units are. As A - |g|^2 = sum l_i |g_i -
g|^2, this is the weighted estimate of least variance. A unit may have accumulated over any number of
micro-batches.

There are four methods, depending on the step:

    step of                      small and large batch          cost when measured
    several ranks                the ranks' means (2),          a read of the gradients before and after
                                 the mean of all                the all-reduce
    one rank that accumulates    its mean halfway, its mean     the same two reads, no memory
    one rank, one batch          the means of its halves (2),   a backward pass, a copy of the gradients
                                 its mean (`halves`)
    the same, if its halves      a step's mean, the mean        a copy of the gradients for a step,
    are not known (SGD)          of two steps                   6 reads

Halfway norms are noisier than norms from a copy of the gradients, by terms of G whose mean is zero. That
matters where batches are large against the noise scale, and 1,000 steps average it out. The last method is
biased, because parameters move between the two steps: with a noise scale of many batches, a usual learning rate hides
the signal. It is abandoned as soon as another method is available.
Optimizers that divide the gradient by its scale (Adam) see another gradient and another noise. For these,
every gradient is first divided in the same way, but an element whose gradient was nearly always zero by no less than a
tenth of the scale of its parameter (`LEAST_SHARE`). The last method does not serve them: a step of Adam moves
parameters so far that the noise scale comes out thousands of times too large.
"""

# ruff: noqa: SLF001 - torch has no public names for operations on lists of tensors

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, NAdam, Optimizer

REMEMBERED_BATCHES = 1000
"""Time constant of the smoothing, in reference batches of samples."""
WARM_UP_STEPS = 10
"""Steps of Adam before its second moment is a usable scale: the inverse of few squares has no mean."""
LEAST_SHARE = 0.01
"""Smallest second moment of an element that counts, as a share of the mean of its parameter.

An element whose gradient was zero so far has a second moment of zero. Its first gradient, divided by the root of that,
would be millions of times larger than the rest of the gradient, and determine the estimate for 1,000 steps.
"""
_STATE = (
    *("sqr", "var", "sqr_sqr", "sqr_var", "var_var"),
    *("weight", "weight_squares", "steps", "biased"),
)
_PART_ELEMENTS = {"cpu": 2**18}
"""Elements per part on a CPU: temporaries fit its cache, and 32-bit sums of squares stay exact to 1e-5."""
_PART_ELEMENTS_ELSEWHERE = 2**24


@dataclass(frozen=True, slots=True)
class Divisor:
    """Scale of one parameter's gradient: sqrt(max(second_moment, least)) * correction + eps; Adam's own for `least` 0."""

    second_moment: Tensor
    least: Tensor
    correction: float
    eps: float


@dataclass(frozen=True, slots=True)
class Preconditioner:
    """The divisors of gradients in an Adam-like optimizer, as of its last step.

    While it is not `ready` there are no usable divisors, and a step must not be measured.
    """

    ready: bool
    divisors: Mapping[Tensor, Divisor]


def preconditioner(optimizer: Optimizer) -> Preconditioner | None:
    """Return the preconditioner in the state of `optimizer`; None where gradients are not divided (SGD)."""
    if not isinstance(optimizer, Adam | NAdam):  # AdamW is an Adam
        return None
    divisors: dict[Tensor, Divisor] = {}
    fewest_steps = math.inf
    for group in optimizer.param_groups:
        states = [(one, optimizer.state[one]) for one in group["params"] if optimizer.state.get(one)]
        if not states:
            continue
        # One parameter represents its group, because reading the count may wait for the device.
        steps = max(float(states[0][1]["step"]), 1.0)
        fewest_steps = min(fewest_steps, steps)
        correction = 1.0 / math.sqrt(1.0 - group["betas"][1] ** steps)
        moments = [state.get("max_exp_avg_sq", state["exp_avg_sq"]) for _, state in states]
        for (parameter, _), moment, total in zip(
            states, moments, torch._foreach_norm(moments, 1), strict=True
        ):
            # A parameter without any gradient so far has no scale: it counts nothing.
            least = torch.where(total > 0.0, LEAST_SHARE / moment.numel() * total, math.inf)
            divisors[parameter] = Divisor(moment, least, correction, group["eps"])
    return Preconditioner(bool(divisors) and fewest_steps >= WARM_UP_STEPS, divisors)


class SquaredNorm:
    """The squared norm of gradients that arrive in pieces, such as DDP's buckets."""

    def __init__(self, preconditioner: Preconditioner | None = None) -> None:
        self._preconditioner = preconditioner
        self._sums: list[Tensor] = []

    def add(self, gradients: Sequence[Tensor], parameters: Sequence[Tensor] = ()) -> None:
        """Add pieces, all on one device; with a preconditioner, their parameters in the same order.

        A parameter unknown to the preconditioner has taken no step yet, and is ignored.
        """
        self._sums += [_sum_of_squares(part) for part in _parts(gradients, parameters, self._preconditioner)]

    def forget(self) -> None:
        """Forget the squares added so far."""
        self._sums = []

    def take(self) -> float:
        """Return the sum of the squares added so far and reset it. Waits for the device."""
        sums, self._sums = self._sums, []
        return torch.stack(sums).sum().item() if sums else 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One step's estimates of |G|^2 (`sqr`) and tr (`var`): noisy, of either sign, unbiased unless `biased`."""

    sqr: float
    var: float
    biased: bool = False


def from_two_batches(
    small_sqr: float, small: float, large_sqr: float, large: float, *, biased: bool = False
) -> Measurement:
    """Solve (1) for the squared norms of the means over `small` and over `large` samples."""
    var = (small_sqr - large_sqr) / (1.0 / small - 1.0 / large)
    return Measurement(large_sqr - var / large, var, biased)


def from_ranks(moment: float, units: int, mean_sqr: float, samples: int) -> Measurement:
    """Return the measurement of a step of `samples` in which `units` ranks, at least 2, had samples.

    `moment` is A of (2). A rank contributes l_i g_i to the all-reduce, so its term is the squared norm of
    that divided by l_i. A rank without samples has no term and is no unit. `mean_sqr` is |g|^2.
    """
    return from_two_batches(moment, samples / units, mean_sqr, samples)


class SuccessiveSteps:
    """Noise measurement on a rank with one batch a step, from pairs of successive steps."""

    def __init__(self) -> None:
        self._kept: list[list[Tensor]] = []
        self._kept_sqr = 0.0
        self._kept_samples = 0

    @property
    def waiting(self) -> bool:
        """True between the two steps of a pair."""
        return bool(self._kept)

    def add(self, gradients: Sequence[Tensor], samples: int) -> Measurement | None:
        """Add the gradients of a step, the mean over `samples`. The second step of a pair gives a measurement."""
        parts = _parts(gradients, (), None)
        if self._kept:
            return self._compare(list(parts), samples)
        self._kept = [[one.clone() for one in part] for part in parts]
        self._kept_sqr, self._kept_samples = _total(self._kept), samples
        return None

    def forget(self) -> None:
        """Discard the first step of a pair, because parameters or peers came from elsewhere."""
        self._kept = []

    def _compare(self, parts: list[list[Tensor]], samples: int) -> Measurement | None:
        kept, self._kept = self._kept, []
        now_sizes, kept_sizes = (
            [[piece.numel() for piece in part] for part in whole] for whole in (parts, kept)
        )
        if now_sizes != kept_sizes:
            return None  # other parameters had gradients
        whole = self._kept_samples + samples
        first, second = self._kept_samples / whole, samples / whole
        moment = first * self._kept_sqr + second * _total(parts)
        for before, now in zip(kept, parts, strict=True):
            torch._foreach_sub_(before, now)
        # |first a + second b|^2 = first |a|^2 + second |b|^2 - first second |a - b|^2
        mean_sqr = moment - first * second * _total(kept)
        return from_two_batches(moment, whole / 2, mean_sqr, whole, biased=True)


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """Smoothed |G|^2 (`sqr`) and trace of the covariance of one sample's gradient (`var`), neither below 0.

    `steps` is the number of measured steps. `biased`: measured by successive steps.
    """

    sqr: float
    var: float
    biased: bool
    steps: int


class NoiseScale:
    """The noise over about 1,000 reference batches, as a bias-corrected exponential average.

    |G|^2 and tr are averaged separately: the mean of a ratio is not the ratio of the means.
    """

    def __init__(self, reference_batch: int) -> None:
        self._reference_batch = reference_batch
        self._forget()

    def _forget(self) -> None:
        self._sqr = self._var = 0.0
        self._sqr_sqr = self._sqr_var = self._var_var = 0.0
        self._weight = self._weight_squares = 0.0
        self._steps = 0
        self._biased = False

    def add(self, measurement: Measurement, samples: int) -> None:
        """Add a measurement, if it is finite; `samples` were trained since the last one.

        The first unbiased measurement replaces all biased ones.
        """
        sqr, var = measurement.sqr, measurement.var
        if not math.isfinite(sqr * sqr + var * var):
            return
        if self._biased and not measurement.biased:
            self._forget()
        self._biased = measurement.biased
        kept = (1.0 - 1.0 / REMEMBERED_BATCHES) ** (samples / self._reference_batch)
        new = 1.0 - kept
        self._sqr = kept * self._sqr + new * sqr
        self._var = kept * self._var + new * var
        self._sqr_sqr = kept * self._sqr_sqr + new * sqr * sqr
        self._sqr_var = kept * self._sqr_var + new * sqr * var
        self._var_var = kept * self._var_var + new * var * var
        self._weight = kept * self._weight + new
        self._weight_squares = kept * kept * self._weight_squares + new * new
        self._steps += 1

    @property
    def estimate(self) -> NoiseEstimate | None:
        """The estimate so far; None before the first measurement."""
        if self._weight == 0.0:
            return None
        sqr, var = self._sqr / self._weight, self._var / self._weight
        return NoiseEstimate(max(sqr, 0.0), max(var, 0.0), self._biased, self._steps)

    def efficiency_error(self, batch: int) -> float:
        """Return the standard error that a single measurement leaves in the efficiency of twice the `batch`.

        The efficiency is relative to that of `batch`, E = (tr + b |G|^2) / (tr + 2 b |G|^2), and the error is relative
        to E. It follows from the scatter of the measurements so far: to first order, a measurement moves E by
        ((1 - E) tr_i + (b - 2 b E) |G|^2_i) / (tr + 2 b |G|^2), which is 0 on average. Infinite if nothing is known.
        """
        now = self.estimate
        whole = now.var + 2 * batch * now.sqr if now is not None else 0.0
        if now is None or not whole > 0.0:
            return math.inf
        efficiency = (now.var + batch * now.sqr) / whole
        of_var, of_sqr = 1.0 - efficiency, batch * (1.0 - 2.0 * efficiency)
        squares = of_var**2 * self._var_var + 2 * of_var * of_sqr * self._sqr_var + of_sqr**2 * self._sqr_sqr
        # The mean of all but the own deviation: with few measurements the scatter is larger than it looks.
        apart = 1.0 - self._weight_squares / self._weight**2
        if apart <= 0.0:
            return math.inf
        error = math.sqrt(max(squares, 0.0) / self._weight / apart) / (whole * efficiency)
        return math.inf if math.isnan(error) else error

    def remembered_steps(self, batch: int) -> float:
        """Return the number of equally weighted steps of `batch` whose mean is as precise as the estimate's average."""
        return 2.0 * REMEMBERED_BATCHES * self._reference_batch / batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers."""
        return {name: getattr(self, f"_{name}") for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of another instance."""
        for name in _STATE:
            setattr(self, f"_{name}", state[name])


def _parts(
    gradients: Sequence[Tensor], parameters: Sequence[Tensor], preconditioner: Preconditioner | None
) -> Iterator[list[Tensor]]:
    """Yield the gradients' elements, divided by the preconditioner, in lists that suit the device."""
    if not gradients:
        return
    limit = _PART_ELEMENTS.get(gradients[0].device.type, _PART_ELEMENTS_ELSEWHERE)
    part: list[tuple[Tensor, Divisor | None]] = []
    elements = 0
    for piece, divisor in _pieces(gradients, parameters, preconditioner, limit):
        if elements + piece.numel() > limit and part:
            yield _divide(part)
            part, elements = [], 0
        part.append((piece, divisor))
        elements += piece.numel()
    if part:
        yield _divide(part)


def _pieces(
    gradients: Sequence[Tensor],
    parameters: Sequence[Tensor],
    preconditioner: Preconditioner | None,
    limit: int,
) -> Iterator[tuple[Tensor, Divisor | None]]:
    if preconditioner is None:
        for gradient in gradients:
            for piece in torch.split(gradient.detach().reshape(-1), limit):
                yield piece, None
        return
    for gradient, parameter in zip(gradients, parameters, strict=True):
        divisor = preconditioner.divisors.get(parameter)
        if divisor is None:
            continue
        pieces = torch.split(gradient.detach().reshape(-1), limit)
        moments = torch.split(divisor.second_moment.reshape(-1), limit)
        for piece, moment in zip(pieces, moments, strict=True):
            yield piece, replace(divisor, second_moment=moment)


def _divide(part: list[tuple[Tensor, Divisor | None]]) -> list[Tensor]:
    pieces = [piece for piece, _ in part]
    divisors = [divisor for _, divisor in part if divisor is not None]
    if not divisors:
        return pieces
    scales = torch._foreach_maximum([one.second_moment for one in divisors], [one.least for one in divisors])
    torch._foreach_sqrt_(scales)
    torch._foreach_mul_(scales, [one.correction for one in divisors])
    torch._foreach_add_(scales, [one.eps for one in divisors])
    return list(torch._foreach_div(pieces, scales))


def _sum_of_squares(part: list[Tensor]) -> Tensor:
    """Return the sum of squares in 64 bits, on the device."""
    short = part[0].dtype in (torch.float16, torch.bfloat16)
    norms = torch._foreach_norm(part, 2.0, dtype=torch.float32 if short else None)
    return torch.stack(norms).double().square().sum()


def _total(parts: Sequence[list[Tensor]]) -> float:
    return torch.stack([_sum_of_squares(part) for part in parts]).sum().item() if parts else 0.0
