"""Client and training library of Headway, which schedules elastic PyTorch training.

A training script needs only `headway.init()`. A script that saves its own checkpoints may call
`headway.preempted()`, and may report its progress with `headway.progress(...)`. A notebook or program that
submits jobs uses `headway.Client`. Importing the package imports neither torch nor the client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headway.preemption import preempted

if TYPE_CHECKING:
    from headway.client.client import (
        ApiError,
        Client,
        JobFailedError,
        ServiceUnavailableError,
        WaitTimeoutError,
    )
    from headway.contract.spec import JobSpec
    from headway.contract.views.jobs import JobState, JobView
    from headway.errors import HeadwayError
    from headway.stepping import progress
    from headway.train import Run

__all__ = [
    "ApiError",
    "Client",
    "HeadwayError",
    "JobFailedError",
    "JobSpec",
    "JobState",
    "JobView",
    "ServiceUnavailableError",
    "WaitTimeoutError",
    "init",
    "preempted",
    "progress",
]
_PLACES = {
    "ApiError": "client.client",
    "Client": "client.client",
    "HeadwayError": "errors",
    "JobFailedError": "errors",
    "JobSpec": "contract.spec",
    "JobState": "contract.views.jobs",
    "JobView": "contract.views.jobs",
    "ServiceUnavailableError": "client.client",
    "WaitTimeoutError": "errors",
    "progress": "stepping",
}
"""Modules of the names that are imported at their first use."""


def __getattr__(name: str) -> Any:
    """Import a name of the client at its first use, because ranks do not need the client."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415  # it takes longer than the import of this package

        return version("headway")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"headway.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES, "__version__"])


def init(*, timeout_s: float = 300.0, collective: str | None = None) -> Run:
    """Join the training run of this process. See `headway.train.init`."""
    from headway.train import init as join  # noqa: PLC0415  # torch, which only ranks need

    return join(timeout_s=timeout_s, collective=collective)
