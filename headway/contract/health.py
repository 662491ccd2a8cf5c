"""Faults of devices and processes, as agents report them and the API shows them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from headway.contract.values.sequences import SequenceNumber
from headway.contract.values.text import GivenText, PrintedText


class FaultGrade(StrEnum):
    """Severity of a device fault.

    FATAL: the device must not be used until an operator releases it. SUSPICIOUS: it must not be used until a
    probe finds it healthy. JOB_ERROR: an error of the script, which does not count against the device.
    """

    FATAL = "fatal"
    SUSPICIOUS = "suspicious"
    JOB_ERROR = "job_error"


class FaultCause(StrEnum):
    """Cause of a device fault."""

    XID = "xid"
    ECC = "ecc"
    TEMPERATURE = "temperature"
    GONE = "gone"
    """The driver no longer lists the device."""
    SLOW = "slow"
    """The device takes much longer than its peers for the same work."""
    OPERATOR = "operator"
    """An operator quarantined the slot."""


class DeviceFault(BaseModel):
    """A fault of a slot's device that the agent detected. It concerns the node, not a job."""

    kind: Literal["device_fault"] = "device_fault"
    sequence: SequenceNumber
    at: datetime
    slot: int
    cause: FaultCause
    code: int | None = None
    """The Xid, the number of ECC errors, or the temperature in degrees Celsius, by `cause`."""
    lasting: bool = False
    """True if the driver reports a permanent fault: no spare memory rows are left to replace bad rows."""
    message: Annotated[PrintedText, Field(max_length=1000)] = ""


class DeviceProbed(BaseModel):
    """The result of a probe of a quarantined slot's device."""

    kind: Literal["device_probed"] = "device_probed"
    sequence: SequenceNumber
    at: datetime
    slot: int
    healthy: bool
    message: Annotated[PrintedText, Field(max_length=1000)] = ""


class QuarantineRequest(BaseModel):
    """Request to keep jobs off a slot. `why` is shown to everyone who lists the slot."""

    why: Annotated[GivenText, Field(max_length=1000)] = ""


class QuarantineView(BaseModel):
    """A quarantined slot. `probe_at` is the time of the next probe; None: only an operator releases the slot."""

    slot: int
    grade: FaultGrade
    cause: FaultCause
    message: str
    since: datetime
    probe_at: datetime | None = None
    probes: int = 0


class DeviceHealth(BaseModel):
    """NVML readings of a GPU; all None for a CPU slot. Frozen, so that thousands of slots share one default."""

    model_config = ConfigDict(frozen=True)

    temperature_c: int | None = None
    memory_used_bytes: int | None = None
    ecc_uncorrected: int | None = None
