"""What an Xid, the number by which NVIDIA's driver names a fault, says about the device.

Meanings and what is to be done after each are those of NVIDIA's Xid catalogue
(docs.nvidia.com/deploy/xid-errors, Ampere and newer). Where it asks for a reset of the device, a reboot of its host or a
repair, the device is no good until somebody has seen to it; where it asks for the program to be started again or looked
at, the program was at fault; whatever may pass by itself is for a probe to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.contract.health import FaultGrade


@dataclass(frozen=True, slots=True)
class Xid:
    """How bad it is, and in words what has happened."""

    grade: FaultGrade
    what: str


_FATAL, _SUSPICIOUS, _JOB = FaultGrade.FATAL, FaultGrade.SUSPICIOUS, FaultGrade.JOB_ERROR

XIDS: Mapping[int, Xid] = {
    # A program's own: it is to be started again, or mended.
    11: Xid(_JOB, "the program sent the device commands that it does not understand"),
    13: Xid(_JOB, "a kernel failed, mostly by leaving the bounds of an array"),
    31: Xid(_JOB, "the program touched memory that is not its own"),
    39: Xid(_JOB, "a copy engine was given a bad copy"),
    43: Xid(_JOB, "the program's work was stopped after an error of its own"),
    45: Xid(_JOB, "work was cleared away since its process ended or failed"),
    68: Xid(_JOB, "the video unit was given bad work"),
    69: Xid(_JOB, "the program used the compute engine in a way that it does not allow"),
    # What may pass: the device goes on, and a probe says how well.
    8: Xid(_SUSPICIOUS, "the device was idle for too long while it had work"),
    32: Xid(_SUSPICIOUS, "commands arrived damaged, maybe on the bus"),
    38: Xid(_SUSPICIOUS, "the driver's firmware failed"),
    61: Xid(_SUSPICIOUS, "its micro-controller halted at a breakpoint"),
    63: Xid(_SUSPICIOUS, "bad memory was found and will be replaced by spare memory at the next reset"),
    92: Xid(_SUSPICIOUS, "many memory errors that could be corrected"),
    94: Xid(_SUSPICIOUS, "memory was lost, and only the program that used it is concerned"),
    109: Xid(_SUSPICIOUS, "the device did not change over to other work in time"),
    121: Xid(_SUSPICIOUS, "errors on the link to the processor that could be corrected"),
    # What needs somebody: a reset of the device, a reboot, or another device.
    46: Xid(_FATAL, "the device has stopped; it needs a reset"),
    48: Xid(_FATAL, "memory was lost for good (two bits at once); it needs a reset"),
    54: Xid(_FATAL, "its power cable is not connected"),
    62: Xid(_FATAL, "its micro-controller has halted; it needs a reset"),
    64: Xid(_FATAL, "bad memory could not be replaced by spare memory"),
    74: Xid(_FATAL, "its NVLink connection to other devices is broken"),
    79: Xid(_FATAL, "it has fallen off the bus; its host needs a reboot"),
    95: Xid(_FATAL, "memory was lost, and nobody knows whose; it needs a reset"),
    110: Xid(_FATAL, "a fault of its security unit; it needs a reset"),
    119: Xid(_FATAL, "its system processor (GSP) does not answer the driver; it needs a reset"),
    120: Xid(_FATAL, "its system processor (GSP) has failed; it needs a reset"),
    136: Xid(_FATAL, "its NVLink connection could not be set up; it needs a reset"),
    140: Xid(_FATAL, "a memory error that was not recovered from; it needs a reset"),
    143: Xid(_FATAL, "it could not be initialised"),
    157: Xid(_FATAL, "a broken part of it could not be taken out of use"),
    158: Xid(_FATAL, "it has timed out for good; it needs a reset"),
}

_UNKNOWN = Xid(_SUSPICIOUS, "a fault that this version does not know")


def xid(code: int | None) -> Xid:
    """What is known of an Xid. One that is not in the table is for a probe to judge."""
    return _UNKNOWN if code is None else XIDS.get(code, _UNKNOWN)
