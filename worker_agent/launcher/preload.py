"""Import of the modules that training scripts need, once before the fork."""

from __future__ import annotations

import gc
import hashlib
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_agent.launcher.processes import holds_device, thread_count

_log = logging.getLogger(__name__)

_MODULES = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.distributed._functional_collectives",
    "torch.distributed.checkpoint",
    "torch.nn.parallel",
    "torch.utils.data",
    "torch._dynamo",  # the first DDP() imports it, and sympy with it: 1.8 s
    "headway.train",
)
_PACKAGES_OF_OURS = ("worker_agent", "headway")

SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""Environment of the launcher: no library may start a thread, or open the GPU to detect it."""
_SET_ANEW = frozenset(
    {"HOME", "LOGNAME", "PYTHONPATH", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "TEMP", "TMP", "TMPDIR", "USER"}
)
"""Variables that a fork applies itself, or that have a value of the run in every rank."""
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Environment of the launcher, unless it has its own tunables: the C library requests huge pages.

Ranks inherit this by the fork. The first access to memory, such as a rank's whole state after a restart, is
up to five times as fast.
"""


@dataclass(frozen=True, slots=True)
class Preloaded:
    """Result of the preload. `no_fork` is the reason why this process cannot fork ranks; empty if it can.

    `reads` has the environment variables that the modules read while they were imported.
    """

    has_torch: bool
    no_fork: str
    reads: frozenset[str] = frozenset()

    def has_read(self, names: Iterable[str]) -> str | None:
        """Return the first of these variables that a new interpreter would read before its script starts."""
        return next((name for name in sorted(names) if name in self.reads - _SET_ANEW), None)


def preload() -> Preloaded:
    """Import the modules, and check that the process is still safe to fork."""
    with recorded_reads() as reads:
        for name in _MODULES:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                _log.info("not preloaded: %s (%s)", name, error)
            except Exception:  # noqa: BLE001  # a broken package must not stop other jobs
                _log.exception("%s cannot be imported; ranks that import it fail with the same error", name)
    gc.collect()
    gc.freeze()  # otherwise a collection in a rank would write to, and so copy, every page
    has_torch = "torch.distributed" in sys.modules
    known = frozenset(reads)
    if not has_torch:
        return Preloaded(has_torch, "torch is not installed beside the agent")
    if thread_count() > 1:
        return Preloaded(has_torch, f"importing torch started {thread_count() - 1} threads", known)
    if holds_device():
        return Preloaded(has_torch, "importing torch opened a GPU", known)
    return Preloaded(has_torch, "", known)


@contextmanager
def recorded_reads() -> Iterator[set[str]]:
    """Yield a set that gets the name of every variable that Python code reads from `os.environ` meanwhile.

    A copy of the whole environment counts as a reading of every variable in it.
    """
    reads: set[str] = set()
    kind = type(os.environ)
    original = kind.__getitem__

    def getitem(self: Any, name: Any) -> Any:
        reads.add(str(name))
        return original(self, name)

    kind.__getitem__ = getitem  # type: ignore[method-assign]
    try:
        yield reads
    finally:
        kind.__getitem__ = original  # type: ignore[method-assign]


def shadowed(folders: list[Path]) -> str | None:
    """Return the first module in `folders` that a script would import instead of a module that is already loaded."""
    loaded = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
    for folder in folders:
        if not folder.is_dir():
            continue
        for entry in sorted(folder.iterdir()):
            importable = entry.suffix in {".py", ".so"} or (entry.is_dir() and any(entry.glob("*.py")))
            if importable and entry.name.partition(".")[0] in loaded:
                return entry.name
    return None


def fresh_seeds() -> None:
    """Reseed the random generators of a fork, as in a new interpreter; Python's `random` does this itself."""
    if "numpy" in sys.modules:
        import numpy as np  # noqa: PLC0415

        np.random.seed()  # unseeded scripts use the legacy global state
    if "torch" in sys.modules:
        import torch  # noqa: PLC0415

        torch.seed()


def use_threads(count: int) -> None:
    """Set the threads of torch's CPU operators, because a fork does not read OMP_NUM_THREADS again."""
    if "torch" in sys.modules:
        import torch  # noqa: PLC0415

        torch.set_num_threads(count)


def code_version() -> str:
    """Return a digest of the code that a launcher loads. A launcher with another digest is outdated."""
    digest = hashlib.sha256(sys.version.encode())
    for package in (*_PACKAGES_OF_OURS, "torch"):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        for file in sorted(origin.parent.rglob("*.py")) if package in _PACKAGES_OF_OURS else [origin]:
            stat = file.stat()
            digest.update(f"{file} {stat.st_mtime_ns} {stat.st_size}\n".encode())
    return digest.hexdigest()[:16]
