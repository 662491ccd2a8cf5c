"""TensorBoard's event files, written without the TensorBoard package.

A file is a sequence of records: length (u64), masked CRC of the length, the record, masked CRC of the record,
all little-endian. The masked CRC is ((c >> 15 | c << 17) + 0xA282EAD8) mod 2^32 of the CRC-32C `c`. A record
is a protobuf message `Event`:

    1 wall_time (double)  2 step (int64)  3 file_version (string)  5 summary  7 session_log
    summary: 1 value*: 1 tag (string), 2 simple_value (float)      session_log: 1 status (1 is START)

Every generation has its own file. It begins with a START at the first step that the generation may report.
TensorBoard then ignores older values of that step and later ones (it calls this a purge).
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

from headway.contract.values.places import folder_of
from headway.storage.stores import Storage, open_storage
from headway.train.trackers.sender import TrackedReport

FOLDER = "tensorboard"
"""Folder of the event files, beside the checkpoints, or in the working folder if there are none."""
UPLOAD_EVERY_S = 30.0
"""Shortest time between uploads to an object store, which cannot append, so each upload sends the whole file.

Uploads also take at most a tenth of the time.
"""


def place_of(checkpoint_uri: str | None, keys: Path | None) -> Path | Storage:
    """Return the place of the job's event files, below which `FOLDER` is: a folder, or an object store."""
    uri = checkpoint_uri or ""
    return folder_of(uri) or open_storage(uri, keys)


@dataclass
class _File:
    """The file of one generation. `stored` is kept only for object stores; `waiting` is not stored yet."""

    key: str
    generation: int
    stored: bytearray = field(default_factory=bytearray)
    waiting: bytearray = field(default_factory=bytearray)


class EventFiles:
    """The event files of the generations in which this process reported."""

    def __init__(self, place: Path | Storage) -> None:
        self._place = place
        self._files: list[_File] = []
        self._next_upload_s = 0.0

    def write(self, reports: Sequence[TrackedReport]) -> None:
        """Append the reports to the file of their generation.

        Raises:
            OSError: earlier reports still cannot be stored, so these reports are not accepted.
        """
        self._store(at_once=False)
        for report in reports:
            if not self._files or self._files[-1].generation != report.generation:
                self._files.append(_new_file(report))
            self._files[-1].waiting += record(values_event(report))
        with suppress(OSError):  # accepted already; the next call or the end tries again
            self._store(at_once=False)

    def close(self, *, complete: bool) -> None:  # noqa: ARG002  # the files do not depend on it
        """Store all reports that are still waiting.

        Raises:
            OSError: they cannot be stored.
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
    """Append all data to the file, or nothing: TensorBoard stops reading at an incomplete record."""
    if not data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if file.write(data) != len(data):
            os.ftruncate(file.fileno(), size)
            raise OSError(errno.ENOSPC, f"{path} could not be written completely")


def _new_file(report: TrackedReport) -> _File:
    # TensorBoard reads files in the order of their names. Generations increase, and clocks of hosts differ.
    when = f"{report.generation:010d}.{time.time_ns():020d}"
    file = _File(
        f"{FOLDER}/events.out.tfevents.{when}.{socket.gethostname()}.{os.getpid()}", report.generation
    )
    file.waiting += record(version_event(report.at_s))
    file.waiting += record(start_event(report.at_s, report.first_step))
    return file


def record(event: bytes) -> bytes:
    """Return an event as a record of a file."""
    length = struct.pack("<Q", len(event))
    return b"".join(
        (length, struct.pack("<I", _masked_crc(length)), event, struct.pack("<I", _masked_crc(event)))
    )


def version_event(at_s: float) -> bytes:
    """Return the first event of a file. `at_s` is Unix time."""
    return _double(1, at_s) + _bytes(3, b"brain.Event:2")


def start_event(at_s: float, first_step: int) -> bytes:
    """Return the event that makes older values of `first_step` and later steps obsolete."""
    return _double(1, at_s) + _integer(2, first_step) + _bytes(7, _integer(1, 1))


def values_event(report: TrackedReport) -> bytes:
    """Return the event with the values of one report."""
    values = b"".join(
        _bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in report.values.items()
    )
    return _double(1, report.at_s) + _integer(2, report.step) + _bytes(5, values)


# Protobuf: a field is its number and kind in one integer, followed by the value.


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    """Encode a float; a value too large for 32 bits becomes infinite, as in a cast."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _varint(field << 3 | 5) + packed


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Encode a non-negative number with seven bits in each byte, the lowest first."""

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
    """Return the table of CRC-32C (Castagnoli, polynomial 0x1EDC6F41), reflected, by byte."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)
