"""Messages of a rank to its agent."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from headway.contract.rank_lines import to_line
from headway.contract.renumbering import ranks_file, renumbered, renumbering_to_line
from headway.contract.runtime import STACKS_SIGNAL, Message, message_file, stacks_file
from headway.train.host.output import warn

_KEPT = 1000


class Mailbox:
    """Writer of this rank's messages to its file in the control folder; without a folder it drops them.

    A rank never waits for its agent, and no failure to write ends it. A line that cannot be written, as on a
    full disk, is kept and sent before the next one, after one warning. Beyond `_KEPT` lines the oldest are
    dropped. Several threads may send.
    """

    def __init__(self, folder: Path | None, *, rank: int, generation: int) -> None:
        self._lock = threading.Lock()
        self._rank = rank
        self._generation = generation
        self._path = folder / message_file(rank) if folder is not None else None
        self._file: int | None = None
        self._unsent: deque[bytes] = deque()
        self._warned = False
        self._flush()

    def set_sender(self, *, rank: int, generation: int) -> None:
        """Set the rank and generation of further messages. The file stays the same."""
        self._rank, self._generation = rank, generation

    def send(self, kind: Callable[..., Message], **fields: Any) -> None:
        """Send a message of this kind with the fields of every message added."""
        if self._path is None:
            return
        with self._lock:
            message = kind(rank=self._rank, generation=self._generation, at_s=time.time(), **fields)
            if len(self._unsent) == _KEPT:
                del self._unsent[1]  # the first line may be partly written: its rest must follow
            self._unsent.append(to_line(message).encode())
            self._flush()

    def _flush(self) -> None:
        if self._path is None:
            return
        try:
            self._write(self._path)
        except OSError as error:
            if not self._warned:
                warn(f"messages to the agent have to wait: {error}")
            self._warned = True

    def _write(self, path: Path) -> None:
        if self._file is None:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        while self._unsent:
            line = self._unsent[0]
            written = os.write(self._file, line)
            if written == len(line):
                self._unsent.popleft()
            else:
                self._unsent[0] = line[written:]


def note_rank(folder: Path | None, *, born_rank: int, rank: int) -> None:
    """Note for the agent that the output of the process that was started as `born_rank` is that of `rank` from now on."""
    if folder is None:
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # a script may close or replace them
            stream.flush()
    try:
        line = renumbering_to_line(renumbered(rank))
        file = os.open(
            folder / ranks_file(born_rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
    except OSError as error:
        warn(f"the log goes on under rank {born_rank} instead of {rank}: {error}")


def write_stacks_on_request(folder: Path | None, rank: int) -> None:
    """Make this process write the stacks of its threads when its agent asks for it.

    `rank` is the rank that the process was started with. The launcher has registered the handler in the
    interpreters that it starts itself, but not in those that a shell command starts.
    """
    if folder is None:
        return
    try:
        path = folder / stacks_file(rank)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
    except OSError as error:
        warn(f"this rank cannot write its stacks if it hangs: {error}")
