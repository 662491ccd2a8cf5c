"""TensorBoard's event files, without TensorBoard: it shows them, and a rank needs none of it.

A file is a row of records: length (u64), masked CRC of it, the record, masked CRC of that, all little-endian. The masked
CRC is ((c >> 15 | c << 17) + 0xA282EAD8) mod 2^32 of the CRC-32C `c`. A record is a protobuf message `Event`:

    1 wall_time (double)  2 step (int64)  3 file_version (string)  5 summary  7 session_log
    summary: 1 value*: 1 tag (string), 2 simple_value (float)      session_log: 1 status (1 is START)

Every generation has a file of its own. It begins with a START at the first step that the generation may report: what
older files say of that step and of later ones does not count any more (TensorBoard's word for it is purge).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from headway.contract.places import folder_of
from headway.train.storage import Storage, open_storage
from headway.train.trackers.sender import Report

FOLDER = "tensorboard"
"""Beside the checkpoints, or in the working folder where there are none."""
UPLOAD_EVERY_S = 30.0
"""An object store has no way to append, so that the file goes there whole. Not more often than this, nor for more than a
tenth of the time.
"""


def place_of(checkpoint_uri: str | None, keys: Path | None) -> Path | Storage:
    """Where the files of the job with these checkpoints lie, in `FOLDER`: in a folder, or in an object store."""
    uri = checkpoint_uri or ""
    return folder_of(uri) or open_storage(uri, keys)


@dataclass
class _File:
    """The file of one generation: what is in storage (kept only where that cannot be appended to), and what is not yet."""

    key: str
    generation: int
    stored: bytearray = field(default_factory=bytearray)
    waiting: bytearray = field(default_factory=bytearray)


class EventFiles:
    """The files of the generations in which this process reported, one after another."""

    def __init__(self, place: Path | Storage) -> None:
        self._place = place
        self._files: list[_File] = []
        self._next_upload_s = 0.0

    def write(self, reports: Sequence[Report]) -> None:
        """Append them.

        Raises:
            OSError: what was given before can still not be stored, and these were not taken.
        """
        self._store(at_once=False)
        for report in reports:
            if not self._files or self._files[-1].generation != report.generation:
                self._files.append(_new_file(report))
            self._files[-1].waiting += record(values_event(report))
        with suppress(OSError):  # they are taken, and the next call or the end tries again
            self._store(at_once=False)

    def close(self, *, complete: bool) -> None:  # noqa: ARG002  # the files are the same
        """Store what is left.

        Raises:
            OSError: that failed.
        """
        self._store(at_once=True)

    def _store(self, *, at_once: bool) -> None:
        for file in self._files:
            if isinstance(self._place, Path):
                _append(self._place / file.key, file.waiting)
            elif at_once or file is not self._files[-1] or time.monotonic() >= self._next_upload_s:
                self._upload(self._place, file)
            else:
                continue
            file.waiting.clear()
        del self._files[:-1]

    def _upload(self, place: Storage, file: _File) -> None:
        began_s = time.monotonic()
        if file.waiting:
            place.put(file.key, bytes(file.stored + file.waiting))
            file.stored += file.waiting
        took_s = time.monotonic() - began_s
        self._next_upload_s = began_s + max(UPLOAD_EVERY_S, 10 * took_s)


def _append(path: Path, data: bytearray) -> None:
    """Write all of it at the end of the file, or nothing: TensorBoard goes no further than half a record."""
    if not data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if file.write(data) != len(data):
            os.ftruncate(file.fileno(), size)
            raise OSError(errno.ENOSPC, f"{path} could not be written whole")


def _new_file(report: Report) -> _File:
    # TensorBoard reads files in the order of their names. Generations count up, clocks of hosts do not agree.
    when = f"{report.generation:010d}.{time.time_ns():020d}"
    file = _File(
        f"{FOLDER}/events.out.tfevents.{when}.{socket.gethostname()}.{os.getpid()}", report.generation
    )
    file.waiting += record(version_event(report.at_s))
    file.waiting += record(start_event(report.at_s, report.first_step))
    return file


def record(event: bytes) -> bytes:
    """An event as it stands in a file."""
    length = struct.pack("<Q", len(event))
    return b"".join(
        (length, struct.pack("<I", _masked_crc(length)), event, struct.pack("<I", _masked_crc(event)))
    )


def version_event(at_s: float) -> bytes:
    """The first of a file. `at_s` is Unix time."""
    return _double(1, at_s) + _bytes(3, b"brain.Event:2")


def start_event(at_s: float, first_step: int) -> bytes:
    """Whatever was said before of `first_step` and later ones does not count."""
    return _double(1, at_s) + _integer(2, first_step) + _bytes(7, _integer(1, 1))


def values_event(report: Report) -> bytes:
    """The values of one report."""
    values = b"".join(
        _bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in report.values.items()
    )
    return _double(1, report.at_s) + _integer(2, report.step) + _bytes(5, values)


# Protobuf: a field is its number and kind in one integer, then the value.


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    """What is too large for 32 bits becomes infinite, as in a cast."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _varint(field << 3 | 5) + packed


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Seven bits to a byte, the lowest first. For numbers that are not negative."""

    def parts() -> Iterator[int]:
        rest = value
        while rest > 0x7F:
            yield rest & 0x7F | 0x80
            rest >>= 7
        yield rest

    return bytes(parts())


def _masked_crc(data: bytes) -> int:
    crc, table = 0xFFFFFFFF, _crc_table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _crc_table() -> tuple[int, ...]:
    """CRC-32C (Castagnoli, polynomial 0x1EDC6F41), reflected: of each byte."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)
