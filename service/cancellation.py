"""Cancellation of tasks that also works if a library replaces CancelledError by another error."""

from __future__ import annotations

import asyncio


def heed_cancellation() -> None:
    """Raise CancelledError if this task was cancelled.

    Call it before continuing after an error, or after a wait with a time limit. A driver that is cancelled
    while it waits for its server may raise an error of its own, and `asyncio.wait_for` of Python 3.11 may
    return its result.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
