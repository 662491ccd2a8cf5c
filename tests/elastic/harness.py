"""A job of real processes: ranks with torchrun's environment and a control folder, size after size.

It stands in for an agent: it starts the ranks of a generation, ends them all when one fails, and reads
their messages.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any, TypeVar

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from headway.contract import rank_lines, runtime
from headway.lookups import ask_no_name_servers
from tests.elastic.devices import device_env
from tests.elastic.ranks import PRELOAD, be_a_rank
from worker_agent.runs.environment import QUICK_LOOKUPS

SCRIPTS = Path(__file__).parent / "scripts"
PATIENCE_S = 240.0

Kind = TypeVar("Kind")
ask_no_name_servers()  # this process keeps the stores, as the agent's child does
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(PRELOAD)


@contextmanager
def preloading(*modules: str) -> Iterator[None]:
    """Start ranks from another fork server, which has also imported these modules, as far as they are installed."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    _server.set_forkserver_preload([*PRELOAD, *modules])
    try:
        yield
    finally:
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        _server.set_forkserver_preload(PRELOAD)


@dataclass
class Generation:
    """The ranks of one generation."""

    processes: list[Any]
    control: Path
    store: TCPStore
    """Kept open here, as an agent does, so that no rank's end takes it away."""

    def wait(self) -> list[int]:
        """Wait for every rank to end; the exit codes, negative for signals. One that fails ends the others."""
        deadline = time.monotonic() + PATIENCE_S
        running = {process.sentinel: process for process in self.processes}
        while running:
            ended = connection.wait(list(running), timeout=deadline - time.monotonic())
            if not ended:
                self.show_where_they_are(running.values())
                self.kill()
                raise AssertionError(f"ranks did not end in {PATIENCE_S} s:\n{self.output()}")
            for sentinel in ended:
                process = running.pop(sentinel)
                process.join()
                if process.exitcode not in (runtime.EXIT_DONE, runtime.EXIT_STOPPED, runtime.EXIT_RETRY):
                    self.kill()
        return [process.exitcode for process in self.processes]

    def show_where_they_are(self, processes: Iterable[Any]) -> None:
        """Have ranks that hang write the stacks of their threads to their output."""
        for process in processes:
            os.kill(process.pid, signal.SIGUSR2)
        connection.wait([process.sentinel for process in processes], timeout=1.0)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds while rank 0 is alive."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            self.processes[0].join(0.01)
            if time.monotonic() > deadline or not self.processes[0].is_alive():
                raise AssertionError(f"waited in vain:\n{self.output()}")

    def stop(self) -> None:
        """Ask every rank to stop, as an agent does."""
        for process in self.processes:
            os.kill(process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End every rank at once."""
        for process in self.processes:
            process.kill()

    def messages(self, kind: type[Kind], rank: int = 0) -> list[Kind]:
        """Return a rank's messages of this kind so far."""
        file = self.control / runtime.message_file(rank)
        if not file.exists():
            return []
        lines = file.read_text().splitlines(keepends=True)
        sent = [rank_lines.from_line(line) for line in lines if line.endswith("\n")]
        return [message for message in sent if isinstance(message, kind)]

    def output(self) -> str:
        """Return the output of all ranks."""
        return "".join(log.read_text() for log in sorted(self.control.glob("*.log")))


@dataclass
class Job:
    """A script, and the generations of it that were run in `folder`."""

    folder: Path
    script: Path
    arguments: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    generations: list[Generation] = field(default_factory=list)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoint URI."""
        return self.folder / "checkpoints"

    def start(
        self,
        size: int,
        *,
        generation: int | None = None,
        ranks: Sequence[int] | None = None,
        store_port: int | None = None,
        **env: str,
    ) -> Generation:
        """Start the next generation with so many ranks, or `ranks` of them, and `env` beside what every rank gets.

        They meet in a store of their own, or in the one at `store_port`.
        """
        number = len(self.generations) + 1 if generation is None else generation
        ranks = range(size) if ranks is None else ranks
        control = self.folder / f"control-{len(self.generations) + 1}"
        control.mkdir()
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        common = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "RES_OPTIONS": QUICK_LOOKUPS,
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store_port or store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            runtime.ENV_GENERATION: str(number),
            runtime.ENV_CHECKPOINT_URI: self.checkpoints.as_uri(),
            runtime.ENV_CONTROL: str(control),
            **self.env,
            **env,
        }
        processes = []
        for rank in ranks:
            ranked = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
            ranked |= device_env(f"{self.folder.name}-{number}.{rank}", rank)
            log = str(control / f"{rank}.log")
            process = _server.Process(
                target=be_a_rank, args=(str(self.script), list(self.arguments), ranked, log), daemon=True
            )
            process.start()
            processes.append(process)
        self.generations.append(Generation(processes, control, store))
        return self.generations[-1]

    def run(self, size: int, *, generation: int | None = None, **env: str) -> Generation:
        """Start the next generation and wait for its end."""
        started = self.start(size, generation=generation, **env)
        started.wait()
        return started

    def messages(self, kind: type[Kind]) -> list[Kind]:
        """Return the messages of this kind from rank 0 of every generation."""
        return [message for one in self.generations for message in one.messages(kind)]

    def end(self) -> None:
        """Leave no process behind."""
        for generation in self.generations:
            generation.kill()


def codes(generation: Generation) -> list[int]:
    """The exit codes of the ranks, by rank."""
    return [process.exitcode for process in generation.processes]
