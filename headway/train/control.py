"""The messages of a rank to its agent."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.contract.runtime import STACKS_SIGNAL, Message, message_file, stacks_file, to_line


class Mailbox:
    """Appends this rank's messages to its file in the control folder; without a folder it drops them.

    A rank never waits for its agent nor dies of it: when a line cannot be written, stderr says so once.
    """

    def __init__(self, folder: Path | None, *, rank: int, generation: int) -> None:
        self._rank = rank
        self._generation = generation
        self._file: int | None = None
        if folder is not None:
            path = folder / message_file(rank)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def speak_for(self, *, rank: int, generation: int) -> None:
        """From now on messages are those of this rank of this generation. The file stays the same."""
        self._rank, self._generation = rank, generation

    def send(self, kind: Callable[..., Message], **fields: Any) -> None:
        """Send a message of this kind; what every message carries is added."""
        if self._file is None:
            return
        message = kind(rank=self._rank, generation=self._generation, at_s=time.time(), **fields)
        try:
            os.write(self._file, to_line(message).encode())
        except OSError as error:
            sys.stderr.write(f"headway: no further messages reach the agent: {error}\n")
            self._file = None


def write_stacks_on_request(folder: Path | None, rank: int) -> None:
    """Have this process write where its threads are when its agent asks for it. `rank`: the one that it was started with.

    An agent's launcher has seen to it already where it started the interpreter; a shell does not.
    """
    if folder is None:
        return
    try:
        path = folder / stacks_file(rank)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
    except OSError as error:
        sys.stderr.write(f"headway: this rank cannot say where it hangs: {error}\n")
