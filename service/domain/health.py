"""Bad devices: how bad a fault is, what follows from it, and which ranks are slow. Pure.

A slot is in quarantine from a fault until a probe has found its device well, or, when the fault was fatal, until an
operator says so or another device is in its place. Three rules keep a device from going to and fro. After each
quarantine of the last day the next one's first probe comes twice as late. A device that the driver has complained about
for the third time within a day is not tried again by itself. And whoever is slow must be so for a minute, and counts as
slow until he is clearly not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from headway.contract.agents import DEVICE_CPU
from headway.contract.health import FaultCause, FaultGrade
from headway.contract.jobs import SlowRank
from service.domain.cluster import SlotKey
from service.domain.xids import xid

FIRST_PROBE_S = 60.0
"""From the first fault to the first probe. Every quarantine of the last day, and every bad probe, doubles the wait."""
LONGEST_WAIT_S = 3600.0
REMEMBERED = timedelta(days=1)
"""Quarantines that began earlier say nothing any more."""
TOO_OFTEN = 3
"""The quarantine of a device within `REMEMBERED` that becomes a fatal one."""
SLOW_FACTOR = 1.5
"""A rank is slow that takes so many times as long for a sample as the median of its peers."""
STILL_SLOW = 1.25
"""It counts as slow until it takes less than this."""
SLOW_FOR_S = 60.0
SLOW_WINDOWS = 10
"""It must be slow for so long, and in so many reports in a row, before that is held against its device."""
FEWEST_PEERS = 2
"""Of two ranks nobody can say which one is wrong."""
_MOST_TIMES = 1e6
"""Scripts report what they like, and what is stored must be a number."""
_LAST_PROBE = "; last probe: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something was noticed of a device. `code` is the Xid, the count or the degrees, as the contract has it."""

    cause: FaultCause
    device_kind: str
    code: int | None = None
    lasting: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class Graded:
    """How bad a fault is, and what it is, for people."""

    grade: FaultGrade
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A time in which a slot gets no job. `id` is None before it is stored; `device` is the GPU's UUID, or empty.

    `probe_at` is None where only an operator, or another device, ends it; `probes` counts those that found it bad.
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
        """The slot."""
        return SlotKey(self.node_id, self.slot)

    @property
    def is_open(self) -> bool:
        """Whether the slot is still in it."""
        return self.released_at is None


class Step(StrEnum):
    """What follows from a fault."""

    NOTE = "note"
    """Nothing for the device; the job concerned is told."""
    CONFINE = "confine"
    """The slot is in quarantine from now on."""
    WORSEN = "worsen"
    """It was already, and no probe will end it any more."""
    POSTPONE = "postpone"
    """It was already; the next probe waits."""
    STAY = "stay"
    """It was already, and nothing is new."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from a fault, why, and the quarantine as it is from now on (None with NOTE)."""

    step: Step
    reason: str
    quarantine: Quarantine | None = None


def grade(fault: Fault) -> Graded:
    """How bad a fault is by itself."""
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
            return Graded(FaultGrade.SUSPICIOUS, "so hot that it slows itself down")
        case FaultCause.GONE:
            return Graded(FaultGrade.SUSPICIOUS, "the driver does not list it any more")
        case FaultCause.SLOW if fault.device_kind == DEVICE_CPU:
            # Cores are shared with whatever else runs on the host.
            return Graded(FaultGrade.JOB_ERROR, "its rank is slow")
        case FaultCause.SLOW:
            return Graded(FaultGrade.SUSPICIOUS, "its rank is slow")
        case FaultCause.OPERATOR:
            return Graded(FaultGrade.FATAL, "an operator has said so")


def decide(fault: Fault, slot: SlotKey, device: str, history: Sequence[Quarantine], now: datetime) -> Verdict:
    """What follows from a fault of the device of a slot, which has been in these quarantines."""
    graded = grade(fault)
    what = f"{graded.what} ({fault.message})" if fault.message else graded.what
    if graded.grade is FaultGrade.JOB_ERROR:
        return Verdict(Step.NOTE, what)
    present = next((one for one in history if one.is_open), None)
    if present is not None:
        return _again(present, fault, graded.grade, what, now)
    earlier = _remembered(history, device, now)
    often = 1 + sum(_is_complaint(one.cause) for one in earlier)
    lasting = graded.grade
    if lasting is FaultGrade.SUSPICIOUS and _is_complaint(fault.cause) and often >= TOO_OFTEN:
        lasting = FaultGrade.FATAL
        what += f"; its quarantine number {often} within a day"
    probe_at = None if lasting is FaultGrade.FATAL else now + _wait(len(earlier))
    begun = Quarantine(
        node_id=slot.node_id,
        slot=slot.slot,
        device=device,
        grade=lasting,
        cause=fault.cause,
        message=what,
        since=now,
        probe_at=probe_at,
    )
    return Verdict(Step.CONFINE, what, begun)


def _again(present: Quarantine, fault: Fault, graded: FaultGrade, what: str, now: datetime) -> Verdict:
    """What follows from a fault of a device that is in quarantine."""
    if present.grade is FaultGrade.FATAL:
        return Verdict(Step.STAY, what, present)
    if graded is FaultGrade.FATAL:
        worse = replace(present, grade=graded, cause=fault.cause, message=what, probe_at=None)
        return Verdict(Step.WORSEN, what, worse)
    soonest = now + _wait(present.probes)
    later = max(present.probe_at or soonest, soonest)
    return Verdict(Step.POSTPONE, what, replace(present, probe_at=later))


def _remembered(history: Sequence[Quarantine], device: str, now: datetime) -> list[Quarantine]:
    """The quarantines of this device that still count. What an operator did says nothing of it."""
    return [
        one
        for one in history
        if one.device == device and one.since > now - REMEMBERED and one.cause is not FaultCause.OPERATOR
    ]


def _is_complaint(cause: FaultCause) -> bool:
    """Whether the device or its driver said so. What a script says of its own speed keeps no device out for good."""
    return cause not in {FaultCause.SLOW, FaultCause.OPERATOR}


def _wait(times: int) -> timedelta:
    """How long to wait after so many quarantines or bad probes."""
    return timedelta(seconds=min(LONGEST_WAIT_S, FIRST_PROBE_S * 2.0 ** min(times, 30)))


def is_due(one: Quarantine, now: datetime) -> bool:
    """Whether a probe may be made now."""
    return one.is_open and one.probe_at is not None and one.probe_at <= now


def after_probe(one: Quarantine, now: datetime, *, healthy: bool, message: str) -> Quarantine:
    """The quarantine after a probe; unchanged by one that was not due: the device has had another fault since."""
    if not is_due(one, now):
        return one
    if healthy:
        return released(one, now, f"a probe found it well{f': {message}' if message else ''}")
    probes = one.probes + 1
    said = one.message.partition(_LAST_PROBE)[0] + _LAST_PROBE + (message or "bad")
    return replace(one, probes=probes, probe_at=now + _wait(probes), message=said)


def released(one: Quarantine, now: datetime, why: str) -> Quarantine:
    """The quarantine, ended."""
    return replace(one, probe_at=None, released_at=now, release_message=why)


def is_replaced(one: Quarantine, device: str) -> bool:
    """Whether another device is in the slot now."""
    return one.is_open and bool(one.device) and bool(device) and one.device != device


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that the rank on a slot takes for a sample, without waiting for others; 0: not known."""

    slot: SlotKey
    sample_s: float


def slow_ranks(before: Sequence[SlowRank], paces: Sequence[Pace], now: datetime) -> tuple[SlowRank, ...]:
    """Which ranks are slow after one more report, and since when. All of them are on one device kind."""
    known = {SlotKey(one.node_id, one.slot): one for one in before}
    told = [one for one in paces if one.sample_s > 0.0]
    if len(told) <= FEWEST_PEERS:
        return ()
    ordered = sorted(one.sample_s for one in told)
    found = []
    for one in told:
        slow = known.get(one.slot)
        times = min(_MOST_TIMES, one.sample_s / _median_without(ordered, one.sample_s))
        if slow is not None and times >= STILL_SLOW:
            found.append(slow.model_copy(update={"times": times, "windows": slow.windows + 1}))
        elif slow is None and times >= SLOW_FACTOR:
            key = one.slot
            found.append(SlowRank(node_id=key.node_id, slot=key.slot, times=times, since=now, windows=1))
    return tuple(found)


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of sorted values, one of them left out: the upper one of two, so that never more than half are slow."""
    at = (len(ordered) - 1) // 2
    return ordered[at + (at >= bisect_left(ordered, value))]


def is_held_against(one: SlowRank, now: datetime) -> bool:
    """Whether a rank has been slow for so long that its device is suspicious, which is said once."""
    lasts_s = (now - one.since).total_seconds()
    return not one.told and one.windows >= SLOW_WINDOWS and lasts_s >= SLOW_FOR_S
