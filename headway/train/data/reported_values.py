"""Values of `run.report` until their mean over the ranks is known, which travels with the ranks' statements.

Ranks exchange a fixed number of numbers with every step anyway, and these values among them. A value that the script reports
in one step is known to all ranks at the end of the next one, without a wait of its own.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headway.train.membership.peers import Peers
from headway.train.trackers.sender import TrackedReport

SLOTS = 16
"""Values that a rank sends with a step. Further reports wait for the next one."""
MOST_WAITING = 64
"""Reports that wait at most. Beyond it, the oldest are sent with rank 0's own values."""
_BITS = struct.Struct("<q")
_REAL = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A report of this rank, and the number by which the other ranks name each of its values; never 0."""

    report: TrackedReport
    keys: dict[str, int]


class ReportedValues:
    """The reports of this rank whose means are not known yet. `send` gets each report with its means."""

    def __init__(self, send: Callable[[TrackedReport], None]) -> None:
        self.shared = False
        """True while ranks train, and so exchange values."""
        self._send = send
        self._waiting: list[_Waiting] = []

    def add(self, report: TrackedReport, *, alone: bool) -> None:
        """Take a report of the script. It is sent at once if this rank is alone, or outside the training loop."""
        if not (self.shared and report.values) or (alone and not self._waiting):
            self._send(report)
            return
        keys = {name: self._key(report, name) for name in report.values}
        self._waiting.append(_Waiting(report, keys))
        if len(self._waiting) > MOST_WAITING:
            self._send(self._waiting.pop(0).report)

    def numbers(self) -> tuple[int, ...]:
        """Return the values for the other ranks as `2 * SLOTS` integers: pairs of a key and the bits of the value."""
        pairs: list[int] = []
        for one in self._waiting:
            if pairs and len(pairs) + 2 * len(one.keys) > 2 * SLOTS:
                break
            for name, key in one.keys.items():
                pairs += [key, *_BITS.unpack(_REAL.pack(one.report.values[name]))]
        return (*pairs[: 2 * SLOTS], *[0] * (2 * SLOTS - len(pairs)))

    def deliver(self, everyone: Sequence[Sequence[int]], rank: int) -> None:
        """Send the reports whose values this rank has sent, with the means over the ranks that reported the same value."""
        if not self._waiting:
            return
        told = [_values_of(numbers) for numbers in everyone]
        mine = told[rank]
        while self._waiting and any(key in mine for key in self._waiting[0].keys.values()):
            one = self._waiting.pop(0)
            means = {
                name: _mean([its[key] for its in told if key in its] or [one.report.values[name]])
                for name, key in one.keys.items()
            }
            self._send(replace(one.report, values=means))

    def share(self, peers: Peers) -> None:
        """Exchange and send the values of the last step, before this rank may leave its peers. Every rank calls it.

        Raises:
            PeersLost: a peer is gone.
        """
        self.deliver(peers.gather(*self.numbers()), peers.rank)

    def flush(self) -> None:
        """Send the waiting reports with this rank's own values."""
        while self._waiting:
            self._send(self._waiting.pop(0).report)

    def _key(self, report: TrackedReport, name: str) -> int:
        """Return the same key on each rank that reports this name for the same time at the same place of the script."""
        at = (report.step, report.samples)
        before = sum(
            (one.report.step, one.report.samples) == at and name in one.keys for one in self._waiting
        )
        return zlib.crc32(repr((at, before, name)).encode()) + 1


def _values_of(numbers: Sequence[int]) -> dict[int, float]:
    return {
        key: _REAL.unpack(_BITS.pack(bits))[0]
        for key, bits in zip(numbers[::2], numbers[1::2], strict=True)
        if key
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
