"""Cost of a checkpoint: pause of training, total time, and throughput.

    python -m benchmarks.checkpoint --json

`async_blocking_s`: pause of training for a save of `--megabytes` of state, whose rest runs in the background.
`first_async_blocking_s`: the same for the first save of a process, some seconds after `warm`.
`sync_s`: seconds until a save is complete. `ratio`: `async_blocking_s` over `sync_s`.
`mb_per_s`: size of the state over `sync_s`. `plain_write_mb_per_s`: throughput of one plain file of the same size with fsync.
`read_mb_per_s`: throughput of loading. Saves and loads include checksums.
`busy_step_ratio`: duration of a step of arithmetic on one core during a save, over that without a save.
`s3`: the same figures with a server on this machine (moto: one process, in memory), which is the bottleneck.

All figures are medians of `--repeats`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from headway.local.ports import free_port
from headway.storage.stores import Storage, open_storage
from headway.train.checkpoint.store import Checkpoints, Failed, Saved
from headway.train.data.position import Position

TENSORS = 48
MB = 1e6


def state_of(megabytes: int, device: str) -> dict[str, dict[str, torch.Tensor]]:
    """Return a state with weights and the two averages of Adam."""
    numbers = int(megabytes * MB / 4 / TENSORS)
    kinds = ("weights", "exp_avg", "exp_avg_sq")
    return {
        kind: {f"layer{n}": torch.randn(numbers, device=device) for n in range(TENSORS // 3)}
        for kind in kinds
    }


class Saves:
    """Saves of a state that changes between them."""

    def __init__(self, storage: Storage, megabytes: int, device: str) -> None:
        self.state = state_of(megabytes, device)
        self.checkpoints = Checkpoints(storage, generation=1, keep=1)
        self._samples = 0

    def begin(self) -> None:
        self._samples += 1
        for tensor in self.state["weights"].values():
            tensor.add_(1)
        if not self.checkpoints.begin(self.state, Position(0, self._samples), samples=self._samples):
            raise RuntimeError("the previous save has not ended")

    def wait(self) -> Saved:
        done = self.checkpoints.wait()
        if done is None or isinstance(done, Failed):
            raise RuntimeError(f"the save failed: {done}")
        return done


def step_s(matrix: torch.Tensor) -> float:
    began = time.perf_counter()
    matrix @ matrix
    return time.perf_counter() - began


def measure(storage: Storage, megabytes: int, repeats: int, device: str = "cpu") -> dict[str, float]:
    """Return the figures of a state on this device."""
    saves = Saves(storage, megabytes, device)
    matrix = torch.randn(384, 384)
    saves.checkpoints.warm(saves.state)
    for _ in range(1500):  # some seconds of warm-up
        step_s(matrix)
    idle = statistics.median(step_s(matrix) for _ in range(300))
    saves.begin()
    first = saves.wait()
    done, busy = [], []
    for _ in range(repeats):
        saves.begin()
        while saves.checkpoints.busy:
            busy.append(step_s(matrix))
        done.append(saves.wait())
    began = time.perf_counter()
    if saves.checkpoints.read() is None:
        raise RuntimeError("nothing can be read")
    read_s = time.perf_counter() - began
    sync = []
    for _ in range(repeats):
        saves.begin()
        sync.append(saves.wait().total_s)
    blocking_s = statistics.median(one.save_s for one in done)
    sync_s = statistics.median(sync)
    return {
        "async_blocking_s": round(blocking_s, 4),
        "first_async_blocking_s": round(first.save_s, 4),
        "sync_s": round(sync_s, 3),
        "ratio": round(blocking_s / sync_s, 4),
        "mb_per_s": round(first.size_bytes / MB / sync_s, 1),
        "read_mb_per_s": round(first.size_bytes / MB / read_s, 1),
        "busy_step_ratio": round(statistics.mean(busy) / idle, 3),
    }


def plain_write_mb_per_s(folder: Path, megabytes: int, repeats: int) -> float:
    data = memoryview(os.urandom(int(megabytes * MB)))
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        with (folder / "plain").open("wb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())
        taken.append(time.perf_counter() - began)
        (folder / "plain").unlink()
    return round(megabytes / statistics.median(taken), 1)


@contextmanager
def bucket() -> Iterator[str]:
    """Run an S3 server, and yield the URI of a folder in a bucket on it."""
    port = free_port()
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    server = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    endpoint = f"http://127.0.0.1:{port}"
    os.environ |= {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
    }
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(urllib.request.Request(f"{endpoint}/kept", method="PUT")).close()
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        yield "s3://kept/job"
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = benchmark_parser(__doc__, quick="8 MB once")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as in a rank that shares the host
    megabytes, repeats = (8, 1) if arguments.quick else (arguments.megabytes, arguments.repeats)
    with temporary_folder() as folder:
        result: dict[str, object] = dict(measure(open_storage(str(folder)), megabytes, repeats))
        result["plain_write_mb_per_s"] = plain_write_mb_per_s(folder, megabytes, repeats)
    with bucket() as uri:
        result["s3"] = measure(open_storage(uri), megabytes, repeats)
    result |= {"megabytes": megabytes, "repeats": repeats}
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
