"""Places where the back-propagation of a model can stop, found in the autograd graph of one forward pass.

A *cut* is a module whose inputs are detached. Parameters whose only influence on the output passes through those inputs then get no
gradient. All others get their whole gradient, with one exception: a parameter on both sides, such as a weight that embedding and head share,
gets a part. The graph shows which parameters lie before a cut; the order of modules in the code does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

Edge: TypeAlias = tuple[Any, int]
"""Node of the autograd graph, and the number of its output."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A place to stop.

    `module` is the number of the module in `Survey.modules`, `depth` the share of the layers after it, and `before` the numbers of
    the parameters whose gradients are then incomplete.
    """

    module: int
    depth: float
    before: frozenset[int]


class Survey:
    """Record of one forward pass of a model, from which `cuts` are chosen."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = [one for one in model.modules() if one is not model and _trains(one)]
        self.parameters = [one for one in model.parameters() if one.requires_grad]
        self._number = {id(one): index for index, one in enumerate(self.parameters)}
        self._layers = list(self._owned(model))
        self._inputs: dict[int, list[Edge]] = {}

    def _owned(self, model: nn.Module) -> Iterator[frozenset[int]]:
        """Yield the parameters of each layer: of each module that has some itself. A shared one belongs to the first module."""
        counted: set[int] = set()
        for module in model.modules():
            own = {self._number[id(one)] for one in module.parameters(recurse=False) if one.requires_grad}
            if own - counted:
                yield frozenset(own - counted)
            counted |= own

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the inputs of modules during a forward pass."""
        handles = [
            module.register_forward_pre_hook(self._recorder(index), with_kwargs=True)
            for index, module in enumerate(self.modules)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _recorder(self, index: int) -> Any:
        def own_node(tensor: Tensor) -> Tensor:
            """Return a view, whose graph node belongs to this use of the tensor only: a residual path keeps another."""
            if not tensor.requires_grad or tensor.grad_fn is None or not torch.is_grad_enabled():
                return tensor
            view = tensor.view_as(tensor)
            self._inputs.setdefault(index, []).append((view.grad_fn, view.output_nr))
            return view

        def record(_module: nn.Module, args: Any, kwargs: Any) -> Any:
            return tree_map_only(Tensor, own_node, args), tree_map_only(Tensor, own_node, kwargs)

        return record

    def cuts(self, output: Any, depths: Sequence[float]) -> list[Cut | None]:
        """Return a cut for each of the depths, at least as deep; None where only the whole model will do.

        `output` is the result of the recorded forward pass.
        """
        ends = [(one.grad_fn, one.output_nr) for one in tensors_of(output)]
        masks = self._masks([*ends, *(edge for edges in self._inputs.values() for edge in edges)])
        reached = _union(masks[node] for node, _ in ends)
        if reached != (1 << len(self.parameters)) - 1:
            return [None] * len(depths)  # parts of the graph are hidden, as in reentrant checkpoints
        found = []
        for module, edges in self._inputs.items():
            mask = _union(masks[node] for node, _ in edges)
            before = frozenset(index for index in range(len(self.parameters)) if mask >> index & 1)
            after = sum(1 for layer in self._layers if not layer & before)
            found.append(Cut(module, after / len(self._layers), before))
        # Modules are recorded in the order of their calls: among equal cuts, the last leaves the least to compute.
        ordered = sorted(enumerate(found), key=lambda one: (one[1].depth, -one[0]))
        candidates = [cut for _, cut in ordered if cut.before and cut.depth > 0.0]
        separates: dict[int, bool] = {}
        return [self._first(candidates, depth, ends, separates) for depth in depths]

    def _first(
        self, candidates: Iterable[Cut], depth: float, ends: Sequence[Edge], separates: dict[int, bool]
    ) -> Cut | None:
        for cut in candidates:
            if cut.depth < depth - 1e-9:
                continue
            if cut.module not in separates:
                separates[cut.module] = _separates(self._inputs[cut.module], ends)
            if separates[cut.module]:
                return cut
        return None

    def _masks(self, edges: Sequence[Edge]) -> dict[Any, int]:
        """Return the parameters that influence each node, as bits."""
        masks: dict[Any, int] = {}
        stack = [(node, False) for node, _ in edges]
        while stack:
            node, done = stack.pop()
            if node in masks:
                continue
            following = _next(node)
            if not done and following:
                stack.append((node, True))
                stack.extend((one, False) for one, _ in following if one not in masks)
                continue
            mask = _union(masks[one] for one, _ in following)
            if (parameter := getattr(node, "variable", None)) is not None:
                mask |= 1 << self._number[id(parameter)] if id(parameter) in self._number else 0
            masks[node] = mask
        return masks


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors of a nested value that have a gradient function."""
    found = [one for one in tree_leaves(output) if isinstance(one, torch.Tensor)]
    return [one for one in found if one.requires_grad and one.grad_fn is not None]


def _separates(cut: Sequence[Edge], ends: Sequence[Edge]) -> bool:
    """Return True if nothing before the cut is computed without it, leaves apart: only then does it save time."""
    before = _reachable(cut, frozenset())
    after = _reachable(ends, frozenset(cut))
    return all(not _next(node) for node in before & after)


def _reachable(edges: Iterable[Edge], without: frozenset[Edge]) -> set[Any]:
    found: set[Any] = set()
    stack = [edge for edge in edges if edge not in without]
    while stack:
        node, _ = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(edge for edge in _next(node) if edge not in without)
    return found


def _next(node: Any) -> list[Edge]:
    return [(one, number) for one, number in node.next_functions if one is not None]


def _union(masks: Iterable[int]) -> int:
    result = 0
    for mask in masks:
        result |= mask
    return result


def _trains(module: nn.Module) -> bool:
    return any(one.requires_grad for one in module.parameters())
