"""Structured partial back-propagation: ranks compute the gradients of the last layers only, in turn.

The gradient of a layer is the mean over the samples of the ranks that computed it. The first step of a generation goes through
the whole model on every rank, and shows where its back-propagation can stop. DDP waits for every parameter, so
parameters before the cut get an empty gradient as soon as the backward pass begins.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from headway.contract.values.depths import level_depths
from headway.train.gradients.cuts import Cut, Survey, tensors_of
from headway.train.gradients.depths import PartialStep
from headway.train.host.output import warn
from headway.train.membership.peers import Peers

_ALL_LAYERS = -1


class PartialBackward:
    """The partial back-propagation of one rank in one generation, down to `min_depth` of the model's layers."""

    def __init__(self, model: nn.Module, min_depth: float, peers: Peers) -> None:
        self._model = model
        self._peers = peers
        self._wanted = level_depths(min_depth, peers.world_size)
        self._depths: tuple[float, ...] | None = None
        self._untold = True
        self._surveys = False
        self._modules: list[nn.Module] = []
        self._parameters: list[nn.Parameter] = []
        self._cuts: list[Cut | None] = []
        self._first_level: dict[int, int] = {}
        self._step: PartialStep | None = None
        self._hook: Any = None

    def take_depths(self) -> tuple[float, ...] | None:
        """Return the depth of each level, ascending, once after the model was surveyed; None at other times."""
        if self._depths is None or not self._untold:
            return None
        self._untold = False
        return self._depths

    @property
    def active(self) -> bool:
        """True if the present step is partial."""
        return self._step is not None

    def begin(self, step: PartialStep | None) -> None:
        """Begin a micro-batch of a step with these levels; None: every rank goes through the whole model."""
        self.close()
        self._surveys = self._depths is None
        self._step = step

    def close(self) -> None:
        """Remove the hook of the last forward pass, which stays during the backward pass for recomputed activations."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = None

    def forward(self, model: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a forward pass of training, from which the backward pass stops at this rank's cut.

        Raises:
            PeersLost: a peer is gone.
        """
        if self._surveys:
            self._surveys = False
            return self._survey(model, args, kwargs)
        cut = self._cuts[self._step.levels[self._peers.rank]] if self._step is not None else None
        if cut is None:
            return model(*args, **kwargs)
        if self._hook is None:
            self._hook = self._modules[cut.module].register_forward_pre_hook(_detach, with_kwargs=True)
        output = model(*args, **kwargs)
        return _with_empty(output, [self._parameters[index] for index in sorted(cut.before)])

    def weigh(self, gradients: Sequence[Tensor], parameters: Sequence[Tensor], samples: int) -> None:
        """Multiply this rank's gradients by their weights in the sum over the ranks.

        A gradient that this rank did not compute as a whole becomes 0. `samples` are those of its last micro-batch.
        """
        assert self._step is not None
        mine = self._step.levels[self._peers.rank]
        by_level: dict[int, list[Tensor]] = {}
        for gradient, parameter in zip(gradients, parameters, strict=True):
            by_level.setdefault(self._first_level[id(parameter)], []).append(gradient)
        for level, same in by_level.items():
            if mine >= level:
                torch._foreach_mul_(same, samples / self._step.samples_from(level))
            else:
                torch._foreach_zero_(same)

    def source(self, parameters: Sequence[Tensor]) -> int | None:
        """Return the rank that alone computes the gradients of these parameters; None if several ranks do."""
        assert self._step is not None
        deepest = len(self._step.levels) - 1
        alone = all(self._first_level[id(one)] == deepest for one in parameters)
        return self._step.deepest if alone else None

    def _survey(self, model: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a forward pass, and choose the cuts from it. All ranks choose the same."""
        survey = Survey(self._model)
        with survey.recording():
            output = model(*args, **kwargs)
        cuts = survey.cuts(output, self._wanted)
        chosen = [_ALL_LAYERS if cut is None else cut.module for cut in cuts]
        parts = [sorted(cut.before) if cut is not None else [] for cut in cuts]
        everyone = self._peers.gather(*chosen, zlib.crc32(repr(parts).encode()))
        if any(one != everyone[0] for one in everyone):
            cuts = [None] * len(cuts)
        if cuts[0] is None and self._peers.is_main:
            warn(
                "partial back-propagation does not suit this model: every path through it must meet in the input of some module, on every "
                "rank alike. All ranks compute all gradients. Remove elastic.partial_backprop from the job file"
            )
        self._use(survey, cuts)
        return output

    def _use(self, survey: Survey, cuts: list[Cut | None]) -> None:
        self._modules, self._parameters, self._cuts = survey.modules, survey.parameters, cuts
        for index, parameter in enumerate(survey.parameters):
            excluded = [level for level, cut in enumerate(cuts) if cut is not None and index in cut.before]
            self._first_level[id(parameter)] = max(excluded, default=-1) + 1
        self._depths = tuple(1.0 if cut is None else cut.depth for cut in cuts)


def _detach(_module: nn.Module, args: Any, kwargs: Any) -> Any:
    return tree_map_only(Tensor, Tensor.detach, args), tree_map_only(Tensor, Tensor.detach, kwargs)


def _with_empty(output: Any, parameters: Sequence[Tensor]) -> Any:
    """Return the output such that its backward pass gives these parameters an empty gradient at once."""
    tensors = tensors_of(output)
    changed = iter(_Empty.apply(len(tensors), *tensors, *parameters))  # type: ignore[no-untyped-call]
    replaced = {id(one): next(changed) for one in tensors}
    return tree_map_only(Tensor, lambda one: replaced.get(id(one), one), output)


class _Empty(torch.autograd.Function):
    """The identity of some tensors, whose backward pass also reaches parameters, without a gradient for them."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.count, ctx.parameters = count, len(tensors) - count
        ctx.set_materialize_grads(False)
        return tuple(one.clone() for one in tensors[:count])  # a script may change an output in place

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, *gradients, *[None] * ctx.parameters)
