"""Device health: the grade of a fault, the response to it, and the detection of slow ranks.

A slot is in quarantine from a fault until a probe has found its device healthy. After a fatal fault it stays
there until an operator releases it or another device takes its place. Three rules add hysteresis:

- Every quarantine within the last day doubles the wait for the first probe of the next one.
- A device with three quarantines within a day, from faults that the driver reported, is not probed again.
- A rank counts as slow after a minute of slowness, and until it is clearly not slow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from headway.contract.health import FaultCause, FaultGrade
from headway.contract.run_facts import SlowRank
from headway.contract.values.devices import is_cpu
from service.domain.cluster.snapshot import SlotKey
from service.domain.nodes.xids import Graded, xid

FIRST_PROBE_S = 60.0
"""Seconds from the first fault to the first probe. Each quarantine of the last day and each failed probe
doubles it.
"""
LONGEST_WAIT_S = 3600.0
REMEMBERED = timedelta(days=1)
"""Time after which a past quarantine no longer counts."""
TOO_OFTEN = 3
"""Number of quarantines of a device within `REMEMBERED` at which the quarantine becomes fatal."""
SLOW_FACTOR = 1.5
"""Ratio to the median time per sample of its peers from which a rank is slow."""
STILL_SLOW = 1.25
"""Ratio below which a slow rank stops being slow."""
SLOW_FOR_S = 60.0
SLOW_WINDOWS = 10
"""Number of slow reports in a row, over at least `SLOW_FOR_S` seconds, before the device is suspected."""
FEWEST_PEERS = 2
"""Number of ranks up to which no rank can be called slow: of two, either may be the wrong one."""
_MOST_TIMES = 1e6
"""Bound on the ratio that is stored, because scripts may report any number."""
_LAST_PROBE = "; last probe: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of a device. `code` is the Xid, the count or the temperature in degrees, as in the contract."""

    cause: FaultCause
    device_kind: str
    code: int | None = None
    lasting: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A period in which a slot gets no job. `id` is None before it is stored; `device` is the GPU's UUID, or
    empty.

    `probe_at` is None if only an operator or another device ends it. `probes` is the number of failed probes.
    """

    id: int | None = None
    node_id: str
    slot: int
    device: str
    grade: FaultGrade
    cause: FaultCause
    message: str
    since: datetime
    probe_at: datetime | None = None
    probes: int = 0
    released_at: datetime | None = None
    release_message: str | None = None

    @property
    def key(self) -> SlotKey:
        """Slot that is in quarantine."""
        return SlotKey(self.node_id, self.slot)

    @property
    def is_open(self) -> bool:
        """True if the slot is still in quarantine."""
        return self.released_at is None


class FaultResponse(StrEnum):
    """Response to a fault."""

    NOTE = "note"
    """No action for the device; the job concerned gets an event."""
    CONFINE = "confine"
    """The slot enters quarantine."""
    WORSEN = "worsen"
    """The slot was in quarantine already, and no probe will end the quarantine any more."""
    POSTPONE = "postpone"
    """The slot was in quarantine already; the next probe is postponed."""
    STAY = "stay"
    """The slot was in quarantine already, and nothing changes."""


@dataclass(frozen=True, slots=True)
class FaultVerdict:
    """The response to a fault, its reason, and the resulting quarantine (None with NOTE)."""

    step: FaultResponse
    reason: str
    quarantine: Quarantine | None = None


def grade(fault: Fault) -> Graded:
    """Return the grade of a fault without regard to its history."""
    match fault.cause:
        case FaultCause.XID:
            known = xid(fault.code)
            number = "an Xid" if fault.code is None else f"Xid {fault.code}"
            return Graded(known.grade, f"{number}: {known.what}")
        case FaultCause.ECC if fault.lasting:
            return Graded(FaultGrade.FATAL, "bad memory could not be replaced by spare memory")
        case FaultCause.ECC:
            return Graded(FaultGrade.SUSPICIOUS, "memory errors that could not be corrected")
        case FaultCause.TEMPERATURE:
            return Graded(FaultGrade.SUSPICIOUS, "so hot that it reduces its clock rate")
        case FaultCause.GONE:
            return Graded(FaultGrade.SUSPICIOUS, "the driver no longer lists it")
        case FaultCause.SLOW if is_cpu(fault.device_kind):
            # Cores are shared with other programs on the host.
            return Graded(FaultGrade.JOB_ERROR, "its rank is slow")
        case FaultCause.SLOW:
            return Graded(FaultGrade.SUSPICIOUS, "its rank is slow")
        case FaultCause.OPERATOR:
            return Graded(FaultGrade.FATAL, "put in quarantine by an operator")


def decide(
    fault: Fault, slot: SlotKey, device: str, history: Sequence[Quarantine], now: datetime
) -> FaultVerdict:
    """Return the response to a fault of the device of a slot, given its quarantines."""
    graded = grade(fault)
    what = f"{graded.what} ({fault.message})" if fault.message else graded.what
    if graded.grade is FaultGrade.JOB_ERROR:
        return FaultVerdict(FaultResponse.NOTE, what)
    present = next((one for one in history if one.is_open), None)
    if present is not None:
        return _again(present, fault, graded.grade, what, now)
    earlier = _remembered(history, device, now)
    count = 1 + sum(_is_complaint(one.cause) for one in earlier)
    worst = graded.grade
    if worst is FaultGrade.SUSPICIOUS and _is_complaint(fault.cause) and count >= TOO_OFTEN:
        worst = FaultGrade.FATAL
        what += f"; quarantine number {count} within a day"
    probe_at = None if worst is FaultGrade.FATAL else now + _wait(len(earlier))
    begun = Quarantine(
        node_id=slot.node_id,
        slot=slot.slot,
        device=device,
        grade=worst,
        cause=fault.cause,
        message=what,
        since=now,
        probe_at=probe_at,
    )
    return FaultVerdict(FaultResponse.CONFINE, what, begun)


def _again(present: Quarantine, fault: Fault, graded: FaultGrade, what: str, now: datetime) -> FaultVerdict:
    """Return the response to a fault of a device that is in quarantine."""
    if present.grade is FaultGrade.FATAL:
        return FaultVerdict(FaultResponse.STAY, what, present)
    if graded is FaultGrade.FATAL:
        worse = replace(present, grade=graded, cause=fault.cause, message=what, probe_at=None)
        return FaultVerdict(FaultResponse.WORSEN, what, worse)
    soonest = now + _wait(present.probes)
    later = max(present.probe_at or soonest, soonest)
    return FaultVerdict(FaultResponse.POSTPONE, what, replace(present, probe_at=later))


def _remembered(history: Sequence[Quarantine], device: str, now: datetime) -> list[Quarantine]:
    """Return the quarantines of this device that still count. Those by an operator do not."""
    return [
        one
        for one in history
        if one.device == device and one.since > now - REMEMBERED and one.cause is not FaultCause.OPERATOR
    ]


def _is_complaint(cause: FaultCause) -> bool:
    """Return True if the device or its driver reported the fault.

    A script's report of its own speed never makes a quarantine permanent.
    """
    return cause not in {FaultCause.SLOW, FaultCause.OPERATOR}


def _wait(times: int) -> timedelta:
    """Return the wait after this number of quarantines or failed probes."""
    return timedelta(seconds=min(LONGEST_WAIT_S, FIRST_PROBE_S * 2.0 ** min(times, 30)))


def is_due(one: Quarantine, now: datetime) -> bool:
    """Return True if a probe may run now."""
    return one.is_open and one.probe_at is not None and one.probe_at <= now


def after_probe(one: Quarantine, now: datetime, *, healthy: bool, message: str) -> Quarantine:
    """Return the quarantine after a probe. A probe that is not due changes nothing: the device has had
    another fault since.
    """
    if not is_due(one, now):
        return one
    if healthy:
        return released(one, now, f"a probe found it healthy{f': {message}' if message else ''}")
    probes = one.probes + 1
    text = one.message.partition(_LAST_PROBE)[0] + _LAST_PROBE + (message or "bad")
    return replace(one, probes=probes, probe_at=now + _wait(probes), message=text)


def released(one: Quarantine, now: datetime, why: str) -> Quarantine:
    """Return the quarantine as ended at `now`."""
    return replace(one, probe_at=None, released_at=now, release_message=why)


def is_replaced(one: Quarantine, device: str) -> bool:
    """Return True if the slot now contains another device."""
    return one.is_open and bool(one.device) and bool(device) and one.device != device


@dataclass(frozen=True, slots=True)
class RankPace:
    """Time per sample of the rank on a slot, in seconds without waiting for peers; 0 if unknown.

    `device_kind` is empty if all ranks are of one kind.
    """

    slot: SlotKey
    sample_s: float
    device_kind: str = ""


def slow_ranks(before: Sequence[SlowRank], paces: Sequence[RankPace], now: datetime) -> tuple[SlowRank, ...]:
    """Return the slow ranks after one more report, with the start of their slowness.

    A rank is compared only with ranks of its device kind.
    """
    by_kind: dict[str, list[RankPace]] = {}
    for pace in paces:
        if pace.sample_s > 0.0:
            by_kind.setdefault(pace.device_kind, []).append(pace)
    known = {SlotKey(one.node_id, one.slot): one for one in before}
    return tuple(one for alike in by_kind.values() for one in _slow_among(known, alike, now))


def _slow_among(
    known: Mapping[SlotKey, SlowRank], paces: Sequence[RankPace], now: datetime
) -> tuple[SlowRank, ...]:
    """Return the slow ranks among ranks of one kind; `known` are those that were slow before."""
    if len(paces) <= FEWEST_PEERS:
        return ()
    ordered = sorted(pace.sample_s for pace in paces)
    found = []
    for pace in paces:
        slow = known.get(pace.slot)
        times = min(_MOST_TIMES, pace.sample_s / _median_without(ordered, pace.sample_s))
        if slow is not None and times >= STILL_SLOW:
            found.append(slow.model_copy(update={"times": times, "windows": slow.windows + 1}))
        elif slow is None and times >= SLOW_FACTOR:
            key = pace.slot
            found.append(SlowRank(node_id=key.node_id, slot=key.slot, times=times, since=now, windows=1))
    return tuple(found)


def _median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of sorted values without one of them.

    Of two middle values it is the upper one, so that at most half of the ranks are slow.
    """
    at = (len(ordered) - 1) // 2
    return ordered[at + (at >= bisect_left(ordered, value))]


def is_held_against(one: SlowRank, now: datetime) -> bool:
    """Return True if a rank has been slow for so long that its device becomes suspicious. This is reported once."""
    lasts_s = (now - one.since).total_seconds()
    return not one.told and one.windows >= SLOW_WINDOWS and lasts_s >= SLOW_FOR_S
