"""A launcher that a benchmark controls directly, without service and agent."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from headway.contract import rank_lines, runtime
from headway.contract.agents import DEVICE_CPU, RankSlot, RunCommand, SlotInfo
from headway.contract.orders import BatchPlan, Order, order_to_json
from headway.local.ports import HOST, free_port
from worker_agent.devices.inventory import cpu_count, gpu_slots
from worker_agent.host.folders import StateFolder, boot_s, write_text
from worker_agent.isolation.engines import DetectedEngine
from worker_agent.isolation.modes import Isolation, UserIds
from worker_agent.launcher.protocol import Kill, Lease, Message, Start, Terminate
from worker_agent.runs.environment import base_env
from worker_agent.runs.launcher_link import LauncherLink
from worker_agent.runs.preparing import Host, launch_plan, write_plan

PATIENCE_S = 120.0
_POLL_S = 0.002
_LEASE_S = 600.0
"""Maximum seconds for which a rank outlives the benchmark."""

Found = TypeVar("Found")


def find_slots(count: int) -> list[SlotInfo]:
    """Return `count` GPU slots if the machine has them, else `count` CPU slots."""
    gpus = gpu_slots()
    if len(gpus) >= count:
        return gpus[:count]
    return [SlotInfo(index=index, device_kind=DEVICE_CPU) for index in range(count)]


def until(
    what: str,
    condition: Callable[[], Found | None],
    check: Callable[[], None],
    *,
    every_s: float = _POLL_S,
) -> Found:
    """Wait until the condition is true, with a check `every_s` seconds, and return its value.

    Raises:
        RuntimeError: the condition is not true within `PATIENCE_S`, or `check` raises it.
    """
    give_up_s = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        check()
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(every_s)
    return found


class Node:
    """Launcher of this machine.

    Args:
        folder: empty folder for its state.
        slots: slots for ranks.
        python: command that runs a script of a rank.
    """

    def __init__(self, folder: Path, slots: Sequence[SlotInfo], *, python: str = "python") -> None:
        self.python = python
        self.state = StateFolder(folder)
        self.state.make()
        env = base_env(os.environ, ())
        isolation = Isolation("none", self.state, env, UserIds(), scratch=folder / "scratch")
        self.host = Host(slots, cpu_count(), env, isolation, DetectedEngine())
        self._link = LauncherLink(self.state, os.environ)

    def __enter__(self) -> Self:
        until("the launcher to be ready", self._connected, lambda: None)
        self.send(Lease(boot_s() + _LEASE_S))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.shut_down()
        self._link.close()

    def send(self, message: Message) -> None:
        """Send an order to the launcher."""
        self._link.send(message)

    def listen(self) -> None:
        """Read and discard messages of the launcher, which disconnects clients that do not read."""
        connection = self._link.connection
        if connection is not None and select.select([connection], [], [], 0.0)[0]:
            self._link.receive()

    def _connected(self) -> bool:
        if self._link.connection is None and self._link.connect() is None:
            return False
        return self._link.receive() is not None and self._link.ready


class Job:
    """Ranks of one script on a node, generation by generation. The end of the `with` block kills all ranks.

    Args:
        node: node on which they run.
        name: name of the job, unique on the node.
        run: command of a rank.
        env: variables of a rank besides Headway's own.
        checkpoint_uri: location of checkpoints; empty for none.
    """

    def __init__(
        self, node: Node, name: str, run: str, *, env: dict[str, str] | None = None, checkpoint_uri: str = ""
    ) -> None:
        self._node = node
        self._folder = node.state.job(name)
        self._folder.work.mkdir(parents=True)
        self._run = run
        self._env = env or {}
        self._checkpoint_uri = checkpoint_uri
        self._ports: dict[int, int] = {}
        self._killed: set[Path] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for generation in self._ports:
            self._node.send(Kill(self._folder.run(generation).name))
        for generation in self._ports:
            until("the ranks to be gone", self._folder.run(generation).gone.exists, self._node.listen)

    def start(
        self,
        generation: int,
        *,
        world_size: int,
        ranks: Sequence[int],
        live: bool = False,
        store_of: int | None = None,
    ) -> None:
        """Start these ranks of a generation.

        Newcomers join through the store of the earlier generation `store_of`.
        """
        folder = self._folder.run(generation)
        self._ports[generation] = free_port()
        slots = self._node.host.slots
        command = RunCommand(
            command_id=folder.name,
            job_id=self._folder.path.name,
            job_name=self._folder.path.name,
            generation=generation,
            attempt=1,
            restart_count=0,
            run=self._run,
            bundle=None,
            env=self._env,
            ranks=[RankSlot(rank=rank, local_rank=n, slot=slots[rank].index) for n, rank in enumerate(ranks)],
            world_size=world_size,
            node_rank=0,
            node_count=1,
            master_addr=HOST,
            master_port=self._ports[generation if store_of is None else store_of],
            hosts_store=True,
            store_port=self._ports[generation],
            live=live,
            joins=store_of is not None,
            global_batch=None,
            checkpoint_uri=self._checkpoint_uri,
            checkpoint_every_s=None,
            checkpoint_keep=1,
            grace_s=60.0,
        )
        folder.path.mkdir(parents=True)
        self._node.host.isolation.prepare(command, folder)
        plan = launch_plan(command, folder, self._node.host, hosts_stores=True)
        write_plan(plan, folder)
        self._node.send(Start(folder.name))

    def order(
        self,
        generation: int,
        members: dict[str, int],
        *,
        store_of: int,
        batch: int | None = None,
        lost: bool = False,
    ) -> None:
        """Order a live change of members, after a loss if `lost`, or of the global batch."""
        store = f"{HOST}:{self._ports[store_of]}"
        plan = None if batch is None else BatchPlan(global_batch=batch)
        order = Order(
            generation=generation,
            world_size=len(members),
            store=store,
            members=members,
            batch=plan,
            lost=lost,
        )
        for born in self._ports:
            write_text(self._folder.run(born).order, order_to_json(order))

    def terminate(self, generation: int) -> None:
        """Send SIGTERM to the ranks of a generation."""
        self._node.send(Terminate(self._folder.run(generation).name))

    def kill_rank(self, generation: int, rank: int) -> None:
        """Send SIGKILL to the process that was started as `rank` of a generation."""
        file = self._folder.run(generation).path / f"rank-{rank}.pid"
        self._killed.add(file.with_suffix(".exit"))
        os.kill(int(json.loads(file.read_text(encoding="utf-8"))["pid"]), signal.SIGKILL)

    def messages(self, generation: int, rank: int, kind: type[Found]) -> list[Found]:
        """Return the messages of this type from the process that was started as `rank`."""
        file = self._folder.run(generation).control / runtime.message_file(rank)
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
        messages = [rank_lines.from_line(line) for line in lines if line.endswith("\n")]
        return [one for one in messages if isinstance(one, kind)]

    def wait_until_gone(self, generation: int) -> None:
        """Wait until no process of a generation is left."""
        self.until(f"generation {generation} to be gone", self._folder.run(generation).gone.exists)

    def until(self, what: str, condition: Callable[[], Found | None], *, every_s: float = _POLL_S) -> Found:
        """Wait until the condition is true, and return its value.

        Raises:
            RuntimeError: the condition is not true within `PATIENCE_S`, or a rank has failed.
        """
        return until(what, condition, self._check_ranks, every_s=every_s)

    def _check_ranks(self) -> None:
        self._node.listen()
        for file in set(self._folder.path.glob("*/rank-*.exit")) - self._killed:
            ended = json.loads(file.read_text(encoding="utf-8"))
            if ended["exit_code"] not in (runtime.EXIT_DONE, runtime.EXIT_STOPPED) and not ended["signalled"]:
                logs = sorted(self._folder.path.glob("*/*.log"))
                output = "".join(log.read_text(encoding="utf-8")[-2000:] for log in logs)
                raise RuntimeError(f"{file.stem} of generation {file.parent.name} failed:\n{output}")
