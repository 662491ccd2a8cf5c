"""A task that was cancelled ends, also where a library has made another error of its cancellation."""

from __future__ import annotations

import asyncio


def heed_cancellation() -> None:
    """Raise CancelledError if somebody has asked this task to end.

    For whoever goes on after an error, or after a wait with a limit: a driver that is cancelled while it waits for its server
    may answer with an error of its own, and `asyncio.wait_for` of Python 3.11 with its result.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
