"""Decision whether an error of a collective, or of the store of a group, means that peers are lost."""

from __future__ import annotations

import torch.distributed as dist

GROUP_ERRORS = (RuntimeError, ValueError, KeyError, AttributeError, AssertionError)
"""Exceptions that torch raises about a peer that is gone, or a group that another thread has aborted."""
_GONE = ("process group has not been initialized", "Invalid process group specified", "is not registered")
"""Parts of torch's messages about a group that is gone."""


def is_loss(error: Exception) -> bool:
    """Return True if the error means a lost peer, and not a mistake of the caller.

    Backends and the store raise subclasses of RuntimeError. About a group that was aborted torch raises ValueError, or
    whatever its tables of groups raise.
    """
    if isinstance(error, RuntimeError):
        return True
    if not isinstance(error, GROUP_ERRORS):
        return False
    if isinstance(error, ValueError) and any(part in str(error) for part in _GONE):
        return True
    return not dist.is_initialized() and _raised_in(error).startswith("torch.distributed")


def _raised_in(error: Exception) -> str:
    """Return the name of the module that raised the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
