"""The module that a script holds, which stays while its forward pass and its model change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class ElasticModule(nn.Module):
    """The model as the script trains it, over the present peers.

    Except for the forward pass, every attribute and method is the model's own, including its state. So is the class that
    `isinstance` sees, beside this one.
    """

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """The class of the model."""
        return (
            type(self.__dict__["_modules"]["module"])
            if "module" in self.__dict__.get("_modules", ())
            else type(self)
        )

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._forwards: list[
            Callable[..., Any]
        ] = []  # in a list, because a module as an attribute would become a submodule

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward pass.

        Raises:
            RuntimeError: torch.compile has compiled this wrapper, whose collectives it cannot trace.
        """
        if self._forwards and torch.compiler.is_compiling():
            _refuse_compiled()
        return self._forwards[0](*args, **kwargs) if self._forwards else self.module(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the model itself, as `nn.Module.compile` does."""
        self.module.compile(*args, **kwargs)

    def set_forward(self, forward: Callable[..., Any] | None) -> None:
        """Send forward passes through `forward`; None: directly to the model."""
        self._forwards = [] if forward is None else [forward]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own state, which is the same at any number of ranks."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a state into the model itself."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        """Return how a copy or a pickle is made; by default pickle would refuse an object of another class."""
        return _restored, (self.__getstate__(),)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy (`copy`, `pickle`), whose forward pass is the model's own."""
        return {**self.__dict__, "_forwards": []}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _refuse_compiled() -> None:
    raise RuntimeError(
        "torch.compile was called with the model that prepare() returned, which exchanges gradients with other ranks; "
        "compile the model before prepare(), or call its compile() method"
    )


def _restored(state: dict[str, Any]) -> ElasticModule:
    """Return a copy of a module from its state."""
    made = ElasticModule.__new__(ElasticModule)
    made.__setstate__(state)  # type: ignore[no-untyped-call]
    return made
