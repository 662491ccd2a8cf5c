"""Meanings of Xids, the numbers by which NVIDIA's driver names faults.

The meanings and remedies follow NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, Ampere and newer).
If the catalogue asks for a reset of the device, a reboot of its host or a repair, the fault is fatal. If it
asks to restart or check the program, the program was at fault. A fault that may pass by itself is suspicious,
and a probe decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.contract.health import FaultGrade


@dataclass(frozen=True, slots=True)
class Xid:
    """The grade of an Xid, and a description of the event."""

    grade: FaultGrade
    what: str


_FATAL, _SUSPICIOUS, _JOB = FaultGrade.FATAL, FaultGrade.SUSPICIOUS, FaultGrade.JOB_ERROR

XIDS: Mapping[int, Xid] = {
    # Errors of the program: restart it or fix it.
    11: Xid(_JOB, "the program sent the device commands that it does not understand"),
    13: Xid(_JOB, "a kernel failed, most often by an array access out of bounds"),
    31: Xid(_JOB, "the program touched memory that is not its own"),
    39: Xid(_JOB, "a copy engine was given a bad copy"),
    43: Xid(_JOB, "the program's work was stopped after an error of its own"),
    45: Xid(_JOB, "pending work was removed because its process ended or failed"),
    68: Xid(_JOB, "the video unit was given bad work"),
    69: Xid(_JOB, "the program used the compute engine in a way that it does not allow"),
    # Errors that may pass: the device continues, and a probe decides.
    8: Xid(_SUSPICIOUS, "the device had work but was idle for too long"),
    32: Xid(_SUSPICIOUS, "commands arrived damaged, maybe on the bus"),
    38: Xid(_SUSPICIOUS, "the driver's firmware failed"),
    61: Xid(_SUSPICIOUS, "its micro-controller halted at a breakpoint"),
    63: Xid(_SUSPICIOUS, "bad memory was found and will be replaced by spare memory at the next reset"),
    92: Xid(_SUSPICIOUS, "many memory errors that could be corrected"),
    94: Xid(_SUSPICIOUS, "memory was lost, and only the program that used it is concerned"),
    109: Xid(_SUSPICIOUS, "the device did not switch to other work in time"),
    121: Xid(_SUSPICIOUS, "errors on the link to the processor that could be corrected"),
    # Errors that need an operator: a reset of the device, a reboot, or another device.
    46: Xid(_FATAL, "the device has stopped; it needs a reset"),
    48: Xid(_FATAL, "memory was lost for good (two bits at once); it needs a reset"),
    54: Xid(_FATAL, "its power cable is not connected"),
    62: Xid(_FATAL, "its micro-controller has halted; it needs a reset"),
    64: Xid(_FATAL, "bad memory could not be replaced by spare memory"),
    74: Xid(_FATAL, "its NVLink connection to other devices is broken"),
    79: Xid(_FATAL, "it has fallen off the bus; its host needs a reboot"),
    95: Xid(_FATAL, "memory was lost, and the affected program is unknown; it needs a reset"),
    110: Xid(_FATAL, "a fault of its security unit; it needs a reset"),
    119: Xid(_FATAL, "its system processor (GSP) does not answer the driver; it needs a reset"),
    120: Xid(_FATAL, "its system processor (GSP) has failed; it needs a reset"),
    136: Xid(_FATAL, "its NVLink connection could not be set up; it needs a reset"),
    140: Xid(_FATAL, "a memory error that was not recovered from; it needs a reset"),
    143: Xid(_FATAL, "it could not be initialised"),
    157: Xid(_FATAL, "a broken part of it could not be disabled"),
    158: Xid(_FATAL, "it has timed out for good; it needs a reset"),
}

_UNKNOWN = Xid(_SUSPICIOUS, "a fault that is unknown to this version")


def xid(code: int | None) -> Xid:
    """Return the meaning of an Xid. One that is not in the table is suspicious."""
    return _UNKNOWN if code is None else XIDS.get(code, _UNKNOWN)
