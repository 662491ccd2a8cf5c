"""The layers of a sharded model, which a script may not replace: each change of size makes them again as they were in `prepare`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter, is_

from torch import nn

_CHILDREN, _PARAMETERS = attrgetter("_modules"), attrgetter("_parameters")


class FixedLayers:
    """The modules of a sharded model and their parameters, as `parallelize` left them.

    FSDP replaces parameters by whole ones while it computes, so these count as the same.
    """

    def __init__(self, model: nn.Module) -> None:
        # Modules of TorchScript have no dicts, and cannot be changed.
        named = [(name, one) for name, one in model.named_modules() if isinstance(_PARAMETERS(one), dict)]
        self._names = [name for name, _ in named]
        self._modules = [one for _, one in named]
        self._children = [dict(one) for one in map(_CHILDREN, self._modules)]
        self._parameters = [dict(one) for one in map(_PARAMETERS, self._modules)]
        # Views stay up to date. Only a rename keeps their values, and it is not looked for.
        dicts = [*map(_CHILDREN, self._modules), *map(_PARAMETERS, self._modules)]
        self._views = [one.values() for one in dicts]
        self._known = self._contents()

    def refuse_changes(self) -> None:
        """Raise an error if a module or a parameter was added, replaced or removed.

        Raises:
            RuntimeError: it names the first of them.
        """
        found = self._contents()
        if len(found) == len(self._known) and all(map(is_, found, self._known)):
            return
        if changed := self._changed():
            raise RuntimeError(
                f"the script has {changed} of a sharded model after prepare(), which neither shards it nor gives it to other "
                "ranks; make the change before prepare(), or copy weights into the layer that is there"
            )
        self._known = found

    def _contents(self) -> list[object]:
        """Return the present children and parameters of each module."""
        return [*chain.from_iterable(self._views)]

    def _changed(self) -> str:
        """Return a text for the first change; empty without one."""
        whole = {id(one) for module in self._modules for one in _whole_parameters(module)}
        for path, module, children, parameters in zip(
            self._names, self._modules, self._children, self._parameters, strict=True
        ):
            for kind, before, present in (
                ("layer", children, _CHILDREN(module)),
                ("parameter", parameters, _PARAMETERS(module)),
            ):
                # Names that came or went first: a list that loses one moves those behind it.
                for name in sorted(
                    {**before, **present}, key=lambda name: name in before and name in present
                ):
                    old, new = before.get(name), present.get(name)
                    if old is not new and id(new) not in whole:
                        verb = "added" if old is None else "removed" if new is None else "replaced"
                        return f"{verb} {kind} {f'{path}.{name}' if path else name}"
        return ""


def _whole_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the whole parameters that FSDP puts in place of those of this module. Torch has no other way to see them."""
    find = getattr(module, "_get_fsdp_state", None)
    if find is None:
        return
    state = find()
    groups = getattr(state, "_fsdp_param_groups", None)
    for group in [state._fsdp_param_group] if groups is None else groups:  # noqa: SLF001
        for one in group.fsdp_params if group is not None else ():
            for name in ("_unsharded_param", "_sharded_post_forward_param"):
                if (whole := getattr(one, name, None)) is not None:
                    yield whole
