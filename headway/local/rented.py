"""Simulated rental of machines on this one: the offers file, and the folder of each machine.

The offers file (YAML) lists the machine types. It is read again all the time, so that edits take effect at
once:

    offers:
      - instance_type: small
        slots: 2
        on_demand_usd_per_h: 0.40
        spot_usd_per_h: 0.12
        spot_capacity: 3
        launch_delay_s: 2
    interruptions:
      - machine: local-m01h2…
        notice_s: 20
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headway.contract.spec import NAME_PATTERN
from headway.contract.values.devices import DEVICE_KIND_PATTERN
from headway.contract.values.markets import Market
from headway.errors import HeadwayError
from headway.local.processes import end, read_pid_file
from headway.private_files import write_private

END_PATIENCE_S = 20.0


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LocalOffer(_Part):
    """A type of machine. A missing price means that the market does not sell it.

    A capacity limits the number of machines at one time; without one, the number is unlimited. Prices are
    greater than 0, because the value of a machine is measured against the price of others. With `joins:
    false`, machines start but their agents never join.
    """

    instance_type: Annotated[str, Field(pattern=NAME_PATTERN)]
    slots: Annotated[int, Field(ge=1, le=4096)] = 1
    device_kind: Annotated[str, Field(pattern=DEVICE_KIND_PATTERN)] = "cpu"
    on_demand_usd_per_h: Annotated[float, Field(gt=0, le=1e6)] | None = None
    spot_usd_per_h: Annotated[float, Field(gt=0, le=1e6)] | None = None
    on_demand_capacity: Annotated[int, Field(ge=0)] | None = None
    spot_capacity: Annotated[int, Field(ge=0)] | None = None
    hazard_per_h: Annotated[float, Field(ge=0)] = 0.0
    min_billed_s: Annotated[float, Field(ge=0)] = 60.0
    launch_delay_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    joins: bool = True

    def capacity(self, market: Market) -> int | None:
        """Return the maximum number of machines at one time, or None for no limit."""
        return self.on_demand_capacity if market is Market.ON_DEMAND else self.spot_capacity


class Interruption(_Part):
    """The interruption of a machine (by its provider's id), `notice_s` after this entry is read."""

    machine: str
    notice_s: Annotated[float, Field(ge=0, le=3600)] = 0.0


class LocalOffers(_Part):
    """The contents of an offers file."""

    currency: Literal["USD"] = "USD"
    region: Annotated[str, Field(pattern=NAME_PATTERN)] = "here"
    offers: tuple[LocalOffer, ...] = ()
    interruptions: tuple[Interruption, ...] = ()

    @model_validator(mode="after")
    def _types_differ(self) -> LocalOffers:
        names = [offer.instance_type for offer in self.offers]
        if len(set(names)) < len(names):
            raise ValueError("two offers have the same instance_type")
        return self


def read_offers(path: Path) -> LocalOffers:
    """Read and check an offers file.

    Raises:
        HeadwayError: the file does not exist, or its contents are invalid.
    """
    try:
        return LocalOffers.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except OSError as error:
        raise HeadwayError(f"{path} cannot be read: {error.strerror}.", "Name a file of offers.") from error
    except yaml.YAMLError as error:
        raise HeadwayError(
            f"{path} is not valid YAML: {error}.", "See docs/renting.md for an example."
        ) from error
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}" for one in error.errors()
        )
        raise HeadwayError(f"{path}: {problems}.", "See docs/renting.md for an example.") from error


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of a machine, stored in its folder. Times are ISO 8601 in UTC."""

    machine_id: str
    external_id: str
    instance_type: str
    market: str
    slots: int
    device_kind: str
    url: str
    node_name: str
    offers: str
    launch_delay_s: float
    joins: bool
    billed_from: str


class MachineFolder:
    """The folder of a machine: `lease.json`, then `host.pid` while it is on, then `ended.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pid_file = path / "host.pid"

    @property
    def lease(self) -> Lease | None:
        """The lease, or None if a launch was interrupted before anything ran."""
        saved = _read(self.path / "lease.json")
        return None if saved is None else Lease(**saved)

    def rent(self, lease: Lease) -> None:
        """Store the lease of a machine that is about to start."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self.path / "lease.json", json.dumps(asdict(lease)))

    @property
    def pid(self) -> int | None:
        """Process id of the machine, or None while it is off."""
        return read_pid_file(self.pid_file)

    def ended(self) -> tuple[datetime, str] | None:
        """Return the time and the reason of the machine's end, or None before its end.

        A machine whose process was killed ended when its process last touched the pid file.
        """
        saved = _read(self.path / "ended.json")
        if saved is not None:
            return datetime.fromisoformat(saved["at"]), saved["message"]
        if not self.pid_file.exists() or self.pid is not None:
            return None
        last = datetime.fromtimestamp(self.pid_file.stat().st_mtime, UTC)
        self.note_end(last, "its process was killed")
        return last, "its process was killed"

    def note_end(self, at: datetime, message: str) -> None:
        """Store the end of the machine. The first stored end is kept."""
        if not (self.path / "ended.json").exists():
            saved = {"at": at.isoformat(), "message": message}
            write_private(self.path / "ended.json", json.dumps(saved))

    def end(self) -> None:
        """Switch the machine off and wait for its end. SIGTERM lets its agent save checkpoints.

        A machine that was just launched and has no process yet finds its stored end when it starts.
        """
        pid = self.pid
        if pid is not None:
            end(pid, (signal.SIGTERM, signal.SIGKILL), END_PATIENCE_S)
        elif self.ended() is None:
            self.note_end(datetime.now(UTC), "it was given back before it was on")


def machine_folders(folder: Path) -> Iterator[MachineFolder]:
    """Yield all machines that were ever launched in a folder, in the order of their ids."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (path / "lease.json").exists():
            yield MachineFolder(path)


class RentedMachines:
    """All machines of a folder, as one child of `headway up`.

    The service starts them, and they end with the stack.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder

    def start(self) -> None:
        """Do nothing, since the service starts machines."""

    def alive(self) -> bool:
        """Return True, so that the supervisor never restarts this child."""
        return True

    def stop(self) -> None:
        """Switch all machines off and store their ends."""
        for machine in machine_folders(self.folder):
            if machine.ended() is None:
                machine.end()
                machine.note_end(datetime.now(UTC), "Headway was stopped")


def _read(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(FileNotFoundError):
        saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return saved
    return None
