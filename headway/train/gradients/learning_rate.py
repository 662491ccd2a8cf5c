"""The learning rate of a step whose batch differs from the script's, set by rule and hidden from the script."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

from torch.optim import SGD, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam

from headway.contract.values.learning_rate_rules import Rule, RuleSetting
from headway.train.gradients.noise import NoiseEstimate


def rule_for(setting: RuleSetting, optimizer: Optimizer) -> Rule:
    """Return the rule of a setting: for `auto`, `adascale` with SGD, `sqrt` with Adam and its variants, else `none`."""
    if setting != "auto":
        return setting
    if isinstance(optimizer, SGD):
        return "adascale"
    return "sqrt" if isinstance(optimizer, Adam | AdamW | NAdam | RAdam | Adamax) else "none"


def factor(rule: Rule, batch: int, reference_batch: int, noise: NoiseEstimate | None = None) -> float:
    """Return the factor of the learning rate for a step of `batch` samples instead of `reference_batch`.

    `adascale` (SGD): the number of steps of the reference batch that make the same progress, according to the
    noise. It is 1 without noise, and approaches the ratio of the batches where noise dominates. Without an
    estimate, a larger batch has the factor 1. `sqrt`: the square root of the ratio (Adam, whose moments
    stay unchanged). `linear`: the ratio.

    Raises:
        ValueError: a batch is not positive, or there is no such rule.
    """
    if batch < 1 or reference_batch < 1:
        raise ValueError(f"a batch must be at least 1 sample; these are {batch} and {reference_batch}")
    scale = batch / reference_batch
    match rule:
        case "none":
            return 1.0
        case "linear":
            return scale
        case "sqrt":
            return math.sqrt(scale)
        case "adascale":
            if noise is None or noise.sqr + noise.var == 0.0:
                return min(1.0, scale)
            reference_var = noise.var / reference_batch
            return (reference_var + noise.sqr) / (reference_var / scale + noise.sqr)
    raise ValueError(f"there is no learning-rate rule {rule!r}; the rules are {', '.join(get_args(Rule))}")


@contextmanager
def scaled(optimizer: Optimizer, by: float) -> Iterator[None]:
    """Multiply the learning rate of every parameter group by `by` within the block, which is one step.

    At all other times schedulers, checkpoints and the script see the script's own learning rate.

    Raises:
        ValueError: the optimizer has no learning rate, and `by` is not 1.
    """
    groups = [group for group in optimizer.param_groups if "lr" in group] if by != 1.0 else []
    if by != 1.0 and not groups:
        raise ValueError(
            f"{type(optimizer).__name__} has no learning rate to scale; set lr_rule: none in the job file"
        )
    own = [group["lr"] for group in groups]
    for group, rate in zip(groups, own, strict=True):
        group["lr"] = rate * by  # not in place: it may be a tensor of the script
    try:
        yield
    finally:
        for group, rate in zip(groups, own, strict=True):
            group["lr"] = rate
