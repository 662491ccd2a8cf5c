"""A job whose members change while it trains. It stands in for the service and its agents."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headway.contract import orders
from headway.contract.orders import Order, member_id, order_to_json
from headway.contract.runtime import ENV_MESH, Envelope, Ready, Switched
from headway.contract.values.meshes import MeshShape
from tests.elastic.allowed_steps import AllowedSteps
from tests.elastic.harness import PATIENCE_S, Generation, Job

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Process:
    """One rank process, by the identity that it keeps for life."""

    cohort: Generation
    generation: int
    rank: int
    handle: Any

    @property
    def id(self) -> str:
        return member_id(self.generation, self.rank)

    def messages(self, kind: type[Kind]) -> list[Kind]:
        return self.cohort.messages(kind, self.rank)

    @property
    def code(self) -> int | None:
        return self.handle.exitcode  # type: ignore[no-any-return]


@dataclass
class Live:
    """A job that runs `scripts/*.py --result FOLDER`, whose rank 0 takes as many steps as `allow` says."""

    job: Job
    generation: int = 0
    processes: dict[str, Process] = field(default_factory=dict)
    members: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._steps = AllowedSteps(self.job.folder)

    def start(
        self, size: int, *, steps: int | None = None, mesh: MeshShape | None = None, **env: str
    ) -> None:
        """Start the first generation, which may take so many steps (None: all)."""
        if steps is not None:
            env["STEPS_ALLOWED"] = str(self.job.folder)
            self.allow(steps)
        self.env = env
        self.members = self._launch(size, 1, range(size), None, mesh)
        self.generation = 1

    def allow(self, steps: int) -> None:
        """Rank 0 may take so many more steps."""
        self._steps.add(steps)

    def allow_all(self) -> None:
        self.allow(10**9)

    @property
    def held(self) -> bool:
        """True if all allowed steps have been taken, and rank 0 waits within the next one."""
        return self._steps.all_taken

    def wait_until_held(self) -> None:
        """Wait until rank 0 is held."""
        self.until(lambda: self.held)

    def newcomers(
        self, kept: Sequence[str], count: int, *, ready: bool = True, mesh: MeshShape | None = None
    ) -> Order:
        """Start newcomers and wait until they are ready; the order under which they and `kept` are the members."""
        number = self._next_number()
        ranks = range(len(kept), len(kept) + count)
        store = self._store_of(kept) if kept else None
        size = len(kept) + count
        new = self._launch(size, number, ranks, store, mesh, HEADWAY_JOINS="1") if count else []
        if not kept:
            store = self.processes[new[0]].cohort.store.port
        if ready:
            for one in new:
                self.until(lambda one=one: bool(self.processes[one].messages(Ready)))  # type: ignore[misc]
        members = {member: rank for rank, member in enumerate([*kept, *new])}
        address = f"127.0.0.1:{store}"
        return Order(generation=number, world_size=size, store=address, members=members, mesh=mesh)

    def survivors(self, kept: Sequence[str], mesh: MeshShape | None = None) -> Order:
        """The order after a loss."""
        members = {member: rank for rank, member in enumerate(kept)}
        store = f"127.0.0.1:{self._store_of(kept)}"
        return Order(
            generation=self._next_number(),
            world_size=len(kept),
            store=store,
            members=members,
            lost=True,
            mesh=mesh,
        )

    def give(self, order: Order) -> None:
        """Write the order for everyone."""
        for cohort in self.job.generations:
            file = cohort.control / orders.ORDER_FILE
            file.with_suffix(".new").write_text(order_to_json(order))
            file.with_suffix(".new").rename(file)
        self.members = sorted(order.members, key=order.members.__getitem__)
        self.generation = order.generation

    def wait_for_switch(self) -> list[Switched]:
        """Wait until every member of the present generation trains; what each said."""
        return [self.until(lambda one=one: self._switched(one)) for one in self.members]  # type: ignore[misc]

    def play(self, changes: Iterable[Callable[[], Order]], *, steps: int) -> None:
        """Carry out changes of members one after the other, each while rank 0 is held and with so many steps behind it."""
        for change in changes:
            self.wait_until_held()
            self.give(change())
            self.allow(steps)
            self.wait_for_switch()

    def kill(self, member: str) -> None:
        self.processes[member].handle.kill()
        self.processes[member].handle.join()

    def signal(self, member: str, number: signal.Signals) -> None:
        os.kill(self.processes[member].handle.pid, number)

    def wait(self) -> list[int | None]:
        """Wait for the end of the members; their exit codes."""
        for member in self.members:
            self.processes[member].handle.join(PATIENCE_S)
        codes = [self.processes[member].code for member in self.members]
        if None in codes:
            hung = [one for one in self.processes.values() if one.code is None]
            hung[0].cohort.show_where_they_are([one.handle for one in hung])
        assert None not in codes, self.output()
        return codes

    def messages(self, kind: type[Kind]) -> list[Kind]:
        """Return the messages of all processes in the order of time."""
        said: list[Any] = [one for process in self.processes.values() for one in process.messages(kind)]
        return sorted(said, key=lambda message: message.at_s)

    def until(self, condition: Callable[[], Kind]) -> Kind:
        """Wait for a condition; what it was in the end."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            ended = bool(self.processes) and all(one.code is not None for one in self.processes.values())
            if ended and not (found := condition()):
                raise AssertionError(f"all ranks have ended:\n{self.output()}")
            if time.monotonic() > give_up_s:
                hung = [one for one in self.processes.values() if one.code is None]
                if hung:
                    hung[0].cohort.show_where_they_are([one.handle for one in hung])
                raise AssertionError(f"waited in vain:\n{self.output()}")
            time.sleep(0.002)
        return found

    def output(self) -> str:
        """Everything printed and said."""
        said = [
            f"{one.id} [{one.code}]: {message}"
            for one in self.processes.values()
            for message in one.messages(Envelope)
        ]
        return "".join(cohort.output() for cohort in self.job.generations) + "\n" + "\n".join(said[-60:])

    def _switched(self, member: str) -> Switched | None:
        said = self.processes[member].messages(Switched)
        assert self.processes[member].code in (None, 0), self.output()
        return next((one for one in said if one.generation == self.generation), None)

    def _launch(
        self,
        world_size: int,
        number: int,
        ranks: Sequence[int],
        store: int | None,
        mesh: MeshShape | None = None,
        **env: str,
    ) -> list[str]:
        if mesh is not None:
            env[ENV_MESH] = str(mesh)
        cohort = self.job.start(
            world_size, generation=number, ranks=ranks, store_port=store, **self.env, **env
        )
        started = [
            Process(cohort, number, rank, handle)
            for rank, handle in zip(ranks, cohort.processes, strict=True)
        ]
        self.processes.update({one.id: one for one in started})
        return [one.id for one in started]

    def _next_number(self) -> int:
        return max([self.generation, *(process.generation for process in self.processes.values())]) + 1

    def _store_of(self, kept: Sequence[str]) -> int:
        return self.processes[kept[0]].cohort.store.port
