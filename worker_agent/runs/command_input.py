"""Standard input of a command beside a rank: chunks that arrive in a thread, and are written in another.

The launcher's child has the other end of the pipe, or of the terminal. Chunks are written in the order of their
sequences. A chunk that arrives twice is written once, and a missing one is an error: nothing is left out silently.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
import threading
from collections import deque

from headway.contract.executions import ExecutionInput, TerminalSize

_EOT = b"\x04"
"""Character by which a terminal in its usual mode ends the input."""


class InputLost(Exception):
    """Error: a chunk of the input is missing."""


class CommandInput:
    """Chunks that have arrived for one command. `give` is safe in any thread; the other methods belong to one."""

    def __init__(self) -> None:
        self.arrived = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Descriptor that is readable once a chunk has arrived, for a selector."""
        self.taken = 0
        """Sequence of the last chunk that was written, or dropped because the command does not read any more."""
        self._lock = threading.Lock()
        self._given: deque[ExecutionInput] = deque()
        self._waiting: deque[ExecutionInput] = deque()
        self._last = 0
        self._rest = b""
        self._writer: int | None = None
        self._is_terminal = False
        self._closed = False

    def give(self, chunk: ExecutionInput) -> None:
        """Add a chunk that has arrived."""
        with self._lock:
            if not self._closed:
                self._given.append(chunk)
                os.eventfd_write(self.arrived, 1)

    def write_to(self, descriptor: int, *, is_terminal: bool) -> None:
        """Set the non-blocking descriptor to write to, which this object closes."""
        self._writer = descriptor
        self._is_terminal = is_terminal

    @property
    def writer(self) -> int | None:
        """Descriptor that is to be awaited for writing, or None if nothing waits to be written."""
        return self._writer if self._waiting else None

    def take_in(self) -> None:
        """Take in the chunks that have arrived.

        Raises:
            InputLost: one is missing before them.
        """
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.arrived)
            given, self._given = self._given, deque()
        for chunk in given:
            if chunk.sequence <= self._last:
                continue  # it was sent twice
            if chunk.sequence != self._last + 1:
                raise InputLost
            self._last = chunk.sequence
            self._waiting.append(chunk)
            if len(self._waiting) == 1:
                self._rest = chunk.data
        if self._writer is None:
            self._drop()

    def write(self) -> None:
        """Write as much as the command takes now."""
        while self._waiting and self._writer is not None:
            chunk = self._waiting[0]
            try:
                while self._rest:
                    self._rest = self._rest[os.write(self._writer, self._rest) :]
            except BlockingIOError:
                return
            except OSError:  # EPIPE, or EIO of a terminal: nobody reads it any more
                self._close_writer()
                self._drop()
                return
            if chunk.size is not None and self._is_terminal:
                resize(self._writer, chunk.size)
            if chunk.eof and not self._is_terminal:
                self._close_writer()
            elif chunk.eof:
                with contextlib.suppress(OSError):
                    os.write(self._writer, _EOT)
            self._waiting.popleft()
            self.taken = chunk.sequence
            self._rest = self._waiting[0].data if self._waiting else b""
        if self._writer is None:
            self._drop()

    def close(self) -> None:
        """Close both descriptors. Chunks that arrive later are dropped."""
        self._close_writer()
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.arrived)

    def _drop(self) -> None:
        self._waiting.clear()
        self._rest = b""
        self.taken = self._last

    def _close_writer(self) -> None:
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None


def resize(terminal: int, size: TerminalSize) -> None:
    """Set the size of a terminal; the kernel tells the programs in its foreground."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))
