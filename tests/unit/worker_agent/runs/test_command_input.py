"""Input of commands: each chunk is written once and in order, and a command that does not read holds it back."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

import pytest

from headway.contract.executions import ExecutionInput, TerminalSize
from worker_agent.runs.command_input import CommandInput, InputLost


def given(stdin: CommandInput, sequence: int, data: bytes = b"", *, eof: bool = False) -> None:
    stdin.give(ExecutionInput(sequence=sequence, data=data, eof=eof))
    stdin.take_in()
    stdin.write()


def piped() -> tuple[CommandInput, int]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    stdin = CommandInput()
    stdin.write_to(writer, is_terminal=False)
    return stdin, reader


def test_repeated_chunk_is_written_once_and_the_end_closes_the_pipe() -> None:
    stdin, reader = piped()
    for sequence, data in ((1, b"a"), (1, b"a"), (2, b"b"), (1, b"a")):
        given(stdin, sequence, data)
    given(stdin, 3, b"c", eof=True)
    assert (os.read(reader, 10), os.read(reader, 10), stdin.taken) == (b"abc", b"", 3)
    os.close(reader)
    stdin.close()


def test_missing_chunk_is_an_error() -> None:
    stdin, reader = piped()
    given(stdin, 1, b"a")
    with pytest.raises(InputLost):
        given(stdin, 3, b"c")
    os.close(reader)
    stdin.close()


def test_chunk_is_taken_only_once_the_command_has_read_it() -> None:
    stdin, reader = piped()
    data = os.urandom(64 << 10)
    for sequence in (1, 2, 3):
        given(stdin, sequence, data)
    assert stdin.taken == 1
    assert stdin.writer is not None
    found = b""
    while len(found) < 3 * len(data):
        found += os.read(reader, 1 << 20)
        stdin.write()
    assert (found, stdin.taken, stdin.writer) == (3 * data, 3, None)
    os.close(reader)
    stdin.close()


def test_input_that_nobody_reads_any_more_is_dropped_and_taken() -> None:
    stdin, reader = piped()
    os.close(reader)
    given(stdin, 1, b"a")
    given(stdin, 2, b"b")
    assert (stdin.taken, stdin.writer) == (2, None)
    stdin.close()
    stdin.give(ExecutionInput(sequence=3))  # it comes too late, and no descriptor of somebody else is written


def test_size_reaches_the_terminal_in_its_order() -> None:
    ours, theirs = os.openpty()
    stdin = CommandInput()
    stdin.write_to(os.dup(ours), is_terminal=True)
    stdin.give(ExecutionInput(sequence=1, size=TerminalSize(rows=31, columns=97)))
    stdin.take_in()
    stdin.write()
    size = struct.unpack("HHHH", fcntl.ioctl(theirs, termios.TIOCGWINSZ, bytes(8)))[:2]
    assert (size, stdin.taken) == ((31, 97), 1)
    os.close(ours)
    os.close(theirs)
    stdin.close()
