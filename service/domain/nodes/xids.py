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
class Graded:
    """The grade of a fault, with a description for users."""

    grade: FaultGrade
    what: str


_FATAL, _SUSPICIOUS, _JOB = FaultGrade.FATAL, FaultGrade.SUSPICIOUS, FaultGrade.JOB_ERROR

XIDS: Mapping[int, Graded] = {
    # Errors of the program: restart it or fix it.
    11: Graded(_JOB, "the program sent the device commands that it does not understand"),
    13: Graded(_JOB, "a kernel failed, most often by an array access out of bounds"),
    31: Graded(_JOB, "the program touched memory that is not its own"),
    39: Graded(_JOB, "a copy engine was given a bad copy"),
    43: Graded(_JOB, "the program's work was stopped after an error of its own"),
    45: Graded(_JOB, "pending work was removed because its process ended or failed"),
    68: Graded(_JOB, "the video unit was given bad work"),
    69: Graded(_JOB, "the program used the compute engine in a way that it does not allow"),
    # Errors that may pass: the device continues, and a probe decides.
    8: Graded(_SUSPICIOUS, "the device had work but was idle for too long"),
    32: Graded(_SUSPICIOUS, "commands arrived damaged, maybe on the bus"),
    38: Graded(_SUSPICIOUS, "the driver's firmware failed"),
    61: Graded(_SUSPICIOUS, "its micro-controller halted at a breakpoint"),
    63: Graded(_SUSPICIOUS, "bad memory was found and will be replaced by spare memory at the next reset"),
    92: Graded(_SUSPICIOUS, "many memory errors that could be corrected"),
    94: Graded(_SUSPICIOUS, "memory was lost, and only the program that used it is concerned"),
    109: Graded(_SUSPICIOUS, "the device did not switch to other work in time"),
    121: Graded(_SUSPICIOUS, "errors on the link to the processor that could be corrected"),
    # Errors that need an operator: a reset of the device, a reboot, or another device.
    46: Graded(_FATAL, "the device has stopped; it needs a reset"),
    48: Graded(_FATAL, "memory was lost for good (two bits at once); it needs a reset"),
    54: Graded(_FATAL, "its power cable is not connected"),
    62: Graded(_FATAL, "its micro-controller has halted; it needs a reset"),
    64: Graded(_FATAL, "bad memory could not be replaced by spare memory"),
    74: Graded(_FATAL, "its NVLink connection to other devices is broken"),
    79: Graded(_FATAL, "it has fallen off the bus; its host needs a reboot"),
    95: Graded(_FATAL, "memory was lost, and the affected program is unknown; it needs a reset"),
    110: Graded(_FATAL, "a fault of its security unit; it needs a reset"),
    119: Graded(_FATAL, "its system processor (GSP) does not answer the driver; it needs a reset"),
    120: Graded(_FATAL, "its system processor (GSP) has failed; it needs a reset"),
    136: Graded(_FATAL, "its NVLink connection could not be set up; it needs a reset"),
    140: Graded(_FATAL, "a memory error that was not recovered from; it needs a reset"),
    143: Graded(_FATAL, "it could not be initialised"),
    157: Graded(_FATAL, "a broken part of it could not be disabled"),
    158: Graded(_FATAL, "it has timed out for good; it needs a reset"),
}

_UNKNOWN = Graded(_SUSPICIOUS, "a fault that is unknown to this version")


def xid(code: int | None) -> Graded:
    """Return the meaning of an Xid. One that is not in the table is suspicious."""
    return _UNKNOWN if code is None else XIDS.get(code, _UNKNOWN)
