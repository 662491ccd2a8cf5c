"""Talking to the agent: messages go to a file, a request to stop comes as SIGTERM."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType

from headway.contract import runtime
from headway.train.environment import RankEnvironment


class Messenger:
    """Appends this rank's messages to its control folder; outside Headway it does nothing."""

    def __init__(self, environment: RankEnvironment) -> None:
        self._rank = environment.rank
        self._generation = environment.generation
        self._descriptor: int | None = None
        if environment.control is not None:
            path = Path(environment.control) / runtime.message_file(environment.rank)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    @property
    def connected(self) -> bool:
        """Whether an agent reads along."""
        return self._descriptor is not None

    def send(self, kind: type[runtime.Message], **fields: object) -> None:
        """Append one message. One write of one line: the agent never sees half of it."""
        if self._descriptor is None:
            return
        message = kind(rank=self._rank, generation=self._generation, at_s=time.time(), **fields)  # type: ignore[arg-type]
        os.write(self._descriptor, runtime.to_line(message).encode())


class StopRequest:
    """Set by SIGTERM; looked at between two steps."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> None:
        """Take SIGTERM as a request from now on. Only the main thread may ask."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's
        self.requested = True
