"""The ranks of the self-test as processes of this machine. It gives them orders as an agent does."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from headway.contract import orders, rank_lines, runtime
from headway.contract.orders import Order, member_id, order_to_json

Found = TypeVar("Found")
Kind = TypeVar("Kind")

PATIENCE_S = 120.0
"""Time limit of each wait for ranks."""
_POLL_S = 0.01
_EXPECTED = (None, runtime.EXIT_DONE, runtime.EXIT_STOPPED, -signal.SIGKILL)
"""Exit codes of ranks that run, have left, were stopped, or were killed."""
_STACKS_S = 1.0
"""Time for ranks to write their stacks."""
_PRELOAD = ["torch._dynamo", "torch.distributed.fsdp", "headway.train", "headway.selftest.members"]
"""Modules that the fork server imports once for all ranks, as an agent's launcher does."""
_forks = multiprocessing.get_context("forkserver")
_OUTPUT_CHARACTERS = 3000
"""Length of the output that a failure quotes: the end, where the error is."""


def shared_gpu_env(gpu: int, host: str) -> dict[str, str]:
    """Return the variables of a rank on a GPU that other ranks may use, too.

    NCCL refuses two ranks on one GPU of a host. Each rank therefore counts as a host of its own, `host`, and NCCL connects
    them over TCP.
    """
    return {
        "CUDA_VISIBLE_DEVICES": str(gpu),
        "LOCAL_RANK": "0",
        "NCCL_HOSTID": host,
        "NCCL_SOCKET_IFNAME": "lo",
    }


class TrialFailed(Exception):  # the self-test reports it as a finding
    """Raised when ranks end, or do not do what was ordered in time."""


@dataclass(frozen=True)
class RankProcess:
    """A process, its identity, and the control folder of its start."""

    id: str
    rank: int
    control: Path
    process: BaseProcess

    def messages(self, kind: type[Kind]) -> list[Kind]:
        """Return the messages of this kind that the process has sent."""
        file = self.control / runtime.message_file(self.rank)
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
        sent = [rank_lines.from_line(line) for line in lines if line.endswith("\n")]
        return [one for one in sent if isinstance(one, kind)]


class Members:
    """The ranks of one job. `present` has the members of the present generation, by rank.

    Args:
        folder: folder for control files and output.
        command: module of a rank, and its arguments.
        gpus: number of GPUs; 0: the ranks use the CPU. Ranks share a GPU if there is only one.
        env: further variables of every rank.
    """

    def __init__(self, folder: Path, command: Sequence[str], *, gpus: int, env: Mapping[str, str]) -> None:
        self.present: list[RankProcess] = []
        self._folder = folder
        self._command = command
        self._gpus = gpus
        self._env = env
        self._generation = 0
        self._started: list[RankProcess] = []
        self._store: TCPStore | None = None
        _forks.set_forkserver_preload(_PRELOAD)

    def start(self, size: int) -> None:
        """Start the first ranks, or the ranks after a stop."""
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.present = self._launch(size, range(size))
        self.until("the first step", lambda: all(one.messages(runtime.FirstStep) for one in self.present))

    def grow(self) -> list[runtime.Switched]:
        """Add one rank, and return the messages of all members about the change."""
        new = self._launch(len(self.present) + 1, [len(self.present)], {runtime.ENV_JOINS: "1"})
        self.until("a new rank", lambda: all(one.messages(runtime.Ready) for one in new))
        return self._order([*self.present, *new])

    def shrink(self, leaver: int) -> list[runtime.Switched]:
        """Let the rank `leaver` go, and return the messages of the others."""
        leaving = self.present[leaver]
        switched = self._order([one for one in self.present if one is not leaving])
        self.until("the end of a rank", lambda: leaving.process.exitcode is not None)
        return switched

    def lose(self, rank: int) -> list[runtime.Switched]:
        """Kill a rank, and return the messages of the survivors."""
        lost = self.present[rank]
        lost.process.kill()
        lost.process.join()
        return self._order([one for one in self.present if one is not lost], lost=True)

    def stop(self) -> None:
        """Stop all ranks, which save a checkpoint before they end."""
        for one in self.present:
            one.process.terminate()
        self.until("a stop", lambda: all(one.process.exitcode is not None for one in self.present))
        codes = [one.process.exitcode for one in self.present]
        if set(codes) != {runtime.EXIT_STOPPED}:
            raise TrialFailed(f"ranks ended with {codes} after a request to stop. {self._output()}")

    def wait(self) -> None:
        """Wait until the present ranks have trained to the end."""
        self.until("the end", lambda: all(one.messages(runtime.Completed) for one in self.present))

    def kill(self) -> None:
        """Kill every process that this job has started."""
        for one in self._started:
            one.process.kill()
            one.process.join()

    def until(self, what: str, condition: Callable[[], Found]) -> Found:
        """Return the first true result of `condition`.

        Raises:
            TrialFailed: a member ended with an error, or nothing happened in `PATIENCE_S` seconds.
        """
        give_up_s = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            failed = [one for one in self._started if one.process.exitcode not in _EXPECTED]
            if failed:
                raise TrialFailed(
                    f"rank {failed[0].id} ended with {failed[0].process.exitcode}. {self._output()}"
                )
            if time.monotonic() > give_up_s:
                self._write_stacks()
                raise TrialFailed(f"no sign of {what} in {PATIENCE_S:.0f} s. {self._output()}")
            time.sleep(_POLL_S)
        return found

    def _order(self, members: Sequence[RankProcess], *, lost: bool = False) -> list[runtime.Switched]:
        assert self._store is not None, "start() comes first"
        if all(one in self.present for one in members):
            self._generation += 1  # new ranks were started for the next generation already
        order = Order(
            generation=self._generation,
            world_size=len(members),
            store=f"127.0.0.1:{self._store.port}",
            members={one.id: rank for rank, one in enumerate(members)},
            lost=lost,
        )
        for control in {one.control for one in self._started}:
            file = control / orders.ORDER_FILE
            file.with_suffix(".new").write_text(order_to_json(order), encoding="utf-8")
            file.with_suffix(".new").rename(file)
        self.present = list(members)
        return [self.until("a switch", lambda one=one: self._switched(one)) for one in members]  # type: ignore[misc]

    def _switched(self, member: RankProcess) -> runtime.Switched | None:
        said = member.messages(runtime.Switched)
        return next((one for one in said if one.generation == self._generation), None)

    def _launch(
        self, world_size: int, ranks: Sequence[int], env: Mapping[str, str] | None = None
    ) -> list[RankProcess]:
        assert self._store is not None, "start() comes first"
        self._generation += 1
        control = self._folder / f"control-{self._generation}"
        control.mkdir()
        common = {
            **os.environ,
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(len(ranks)),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1",
            runtime.ENV_GENERATION: str(self._generation),
            runtime.ENV_CONTROL: str(control),
            **self._env,
            **(env or {}),
        }
        launched = []
        for local, rank in enumerate(ranks):
            ranked = {**common, "RANK": str(rank), "LOCAL_RANK": str(local), **self._device_env(local, ranks)}
            log = str(control / f"{rank}.log")
            process = _forks.Process(target=_become_rank, args=(self._command, ranked, log), daemon=True)
            process.start()
            launched.append(RankProcess(member_id(self._generation, rank), rank, control, process))
        self._started += launched
        return launched

    def _device_env(self, local: int, ranks: Sequence[int]) -> dict[str, str]:
        """Return the variables that give a rank its GPU.

        As under an agent, ranks that start together see the same GPUs.
        """
        if self._gpus == 0:
            return {"CUDA_VISIBLE_DEVICES": ""}
        if self._gpus > 1:
            return {"CUDA_VISIBLE_DEVICES": ",".join(str(rank % self._gpus) for rank in ranks)}
        return shared_gpu_env(0, f"{self._folder.name}-{self._generation}.{ranks[local]}")

    def _write_stacks(self) -> None:
        """Let every rank that still runs write the stacks of its threads into its control folder."""
        for one in self._started:
            if one.process.exitcode is None:
                assert one.process.pid is not None, "it was started"
                os.kill(one.process.pid, runtime.STACKS_SIGNAL)
        time.sleep(_STACKS_S)

    def _output(self) -> str:
        """Return the end of the ranks' output, and the stacks of ranks that hang."""
        files = [*self._folder.glob("control-*/*.log"), *self._folder.glob("control-*/stacks-*.txt")]
        logs = sorted(files, key=lambda file: file.stat().st_mtime)
        text = "\n".join(log.read_text(encoding="utf-8", errors="replace").strip() for log in logs)
        return f"Output of the ranks:\n{text[-_OUTPUT_CHARACTERS:]}"


def _become_rank(command: Sequence[str], env: Mapping[str, str], log: str) -> None:
    """Run a module with its arguments as `python -m` does, with this environment and its output in `log`."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(env)
    torch.set_num_threads(1)  # a fork does not read OMP_NUM_THREADS again
    sys.argv = list(command)
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
