"""The module that a script holds, which stays while its forward pass and its model change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class ElasticModule(nn.Module):
    """The model as the script trains it, over the present peers.

    Except for the forward pass, every attribute and method is the model's own, including its state.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._forwards: list[
            Callable[..., Any]
        ] = []  # in a list, because a module as an attribute would become a submodule

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward pass."""
        return self._forwards[0](*args, **kwargs) if self._forwards else self.module(*args, **kwargs)

    def set_forward(self, forward: Callable[..., Any] | None) -> None:
        """Send forward passes through `forward`; None: directly to the model."""
        self._forwards = [] if forward is None else [forward]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own state, which is the same at any number of ranks."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a state into the model itself."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy (`copy`, `pickle`), whose forward pass is the model's own."""
        return {**self.__dict__, "_forwards": []}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)
