"""What goes wrong with devices and processes, as agents report it and the API shows it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from headway.contract.text import GivenText, PrintedText


class FaultGrade(StrEnum):
    """FATAL: the device must not be used until somebody has mended it. SUSPICIOUS: not until a probe has found it well.
    JOB_ERROR: the script's own doing, and nothing against the device.
    """

    FATAL = "fatal"
    SUSPICIOUS = "suspicious"
    JOB_ERROR = "job_error"


class FaultCause(StrEnum):
    """What was noticed of a device."""

    XID = "xid"
    ECC = "ecc"
    TEMPERATURE = "temperature"
    GONE = "gone"
    """The driver does not list it any more."""
    SLOW = "slow"
    """It takes much longer for the same work than its peers do."""
    OPERATOR = "operator"
    """Somebody has said so."""


class DeviceFault(BaseModel):
    """An agent has noticed something of the device of a slot. It is about the node, not about a job."""

    kind: Literal["device_fault"] = "device_fault"
    sequence: int
    at: datetime
    slot: int
    cause: FaultCause
    code: int | None = None
    """The Xid, or the count or degrees that were read."""
    lasting: bool = False
    """The driver itself says that this does not pass: it has no spare memory left to put in the place of bad rows."""
    message: Annotated[PrintedText, Field(max_length=1000)] = ""


class DeviceProbed(BaseModel):
    """What a probe of a quarantined slot's device found."""

    kind: Literal["device_probed"] = "device_probed"
    sequence: int
    at: datetime
    slot: int
    healthy: bool
    message: Annotated[PrintedText, Field(max_length=1000)] = ""


class QuarantineRequest(BaseModel):
    """Keep a slot from jobs. `why` is shown to whoever asks."""

    why: Annotated[GivenText, Field(max_length=1000)] = ""


class QuarantineView(BaseModel):
    """A slot that no job gets, and why. `probe_at` is when it is tried again; None: only an operator releases it."""

    slot: int
    grade: FaultGrade
    cause: FaultCause
    message: str
    since: datetime
    probe_at: datetime | None = None
    probes: int = 0
