"""Hosts on a shelf: a host starts its agent when it finds an order in a shared folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Self

from headway_example.settings import ShelfSettings, read_settings
from service.extending import Found, JoinBy, Machine, NoCapacity, Offer


class Shelf:
    """Hosts on a shelf, with an order file for each rented one."""

    name: ClassVar[str] = "shelf"
    protocol: ClassVar[int] = 1

    def __init__(self, settings: ShelfSettings, now: Callable[[], datetime]) -> None:
        self._settings = settings
        self._now = now

    @classmethod
    def from_env(cls, env: Mapping[str, str], now: Callable[[], datetime]) -> Self:
        """Return the provider of an environment. Raise SettingsError."""
        return cls(read_settings(env), now)

    async def offers(self) -> Sequence[Offer]:
        """Return the one type of host."""
        return [
            Offer(
                provider=self.name,
                region="shelf",
                instance_type="host",
                device_kind="cpu",
                devices=2,
                on_demand_usd_per_h=self._settings.usd_per_h,
                seen_at=self._now(),
            )
        ]

    async def launch(self, machine: Machine, join: JoinBy) -> Found:
        """Write the order, once. Raise NoCapacity while all hosts are taken."""
        file = self._file(machine.id)
        if not file.exists():
            if sum(not one.ended for one in await self.list()) >= self._settings.hosts:
                raise NoCapacity("all hosts are taken; add one, or wait")
            order = {"url": join.url, "token": join.token, "node": join.node_name}
            self._write(file, {**order, "from": self._now().isoformat()})
        return self._found(file)

    async def terminate(self, external_id: str) -> None:
        """Write the end into the order, once."""
        file = self._file(external_id)
        if file.exists() and not self._found(file).ended:
            self._write(file, {**json.loads(file.read_text()), "to": self._now().isoformat()})

    async def list(self) -> Sequence[Found]:
        """Return the machines of all orders, ended ones included."""
        return [self._found(file) for file in sorted(self._settings.folder.glob("*.json"))]

    def _file(self, name: str) -> Path:
        return self._settings.folder / f"{name}.json"

    def _write(self, file: Path, order: dict[str, Any]) -> None:
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(order))
        fresh.replace(file)

    def _found(self, file: Path) -> Found:
        order = json.loads(file.read_text())
        ended = order.get("to")
        return Found(
            external_id=file.stem,
            machine_id=file.stem,
            ended=ended is not None,
            billed_from=datetime.fromisoformat(order["from"]),
            billed_to=datetime.fromisoformat(ended) if ended else None,
        )
