"""Every benchmark runs to its end with `--quick`, as the user of the tests and, where that is root, as another one too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.arguments import FOLDER, names
from benchmarks.engines import kubernetes_cluster
from benchmarks.engines.slurm_cluster import INSTALLED, MISSING
from benchmarks.networking.namespaces import why_not
from service.simulation.model.profiles import data_folder
from service.simulation.model.world import BadInput
from tests.integration.benchmarks.identity import NOBODY, ROOT, as_nobody, why_not_nobody

pytestmark = pytest.mark.slow

PATIENCE_S = 600.0
PURE = {"allocation", "budget", "budget_curve", "fit", "policies", "rental", "simulation"}
"""They compute, and start nothing that could be another user's."""
LONG_AS_ANOTHER = {
    "agents",
    "agreement",
    "contention",
    "failure",
    "faults",
    "forecast",
    "frameworks",
    "gpu",
    "mixed_kinds",
    "overhead",
    "pages",
    "progress",
    "resize",
    "scripts",
    "search",
    "sharded",
    "soak",
    "spb",
    "uneven",
}
"""Slow benchmarks whose programs quicker ones start as well."""
ELSEWHERE = {"faults", "mixed_kinds"}
"""`tests/chaos/test_faults.py` and `tests/e2e/test_mixed_kinds.py` run them, for longer."""
DEVICES = {"gpu": ["--device", "cpu"]}
"""Options of benchmarks that measure GPUs: the code is the same without them."""
ROOT_ONLY = {"hosts", "leases", "slurm"}
"""They make network namespaces, or play the nodes of another system."""


def needs_data(name: str) -> bool:
    module = FOLDER / f"{name}.py"
    text = (module if module.exists() else FOLDER / name / "__main__.py").read_text(encoding="utf-8")
    return any(word in text for word in ("data_folder", "published_world", "world_of_stream"))


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder that another user may enter; pytest's own are closed, and too long for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="headway-quick-")).resolve()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run_quick(name: str, scratch: Path, *, nobody: bool) -> None:
    if name == "leases" and not kubernetes_cluster.INSTALLED:
        pytest.skip(kubernetes_cluster.MISSING)
    if name in ROOT_ONLY and (missing := why_not()) is not None:
        pytest.skip(missing)
    if name == "slurm" and not INSTALLED:
        pytest.skip(MISSING)
    if needs_data(name):
        try:
            data_folder()
        except BadInput as missing:
            pytest.skip(str(missing))
    home = scratch / "home"
    home.mkdir()
    argv = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--json", *DEVICES.get(name, [])]
    if nobody:
        os.chown(home, NOBODY, NOBODY)
        argv = as_nobody(argv, scratch)
    # As on a machine of its own: the tests' kind of isolation is not the one of an agent that is root.
    env = {key: value for key, value in os.environ.items() if key != "HEADWAY_ISOLATION"}
    env |= {"HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout), "one JSON object, and nothing else"
    assert [path.name for path in home.iterdir() if path.name.startswith("headway-benchmark-")] == [], (
        "it cleans up"
    )


def test_a_benchmark_of_gpus_says_that_there_is_none() -> None:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    argv = [sys.executable, "-m", "benchmarks.gpu", "--json"]
    done = subprocess.run(
        argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert "skipped: torch finds no CUDA device" in line


@pytest.mark.timeout(660)
@pytest.mark.parametrize(
    "name",
    [name for name in names() if name not in ELSEWHERE],
)
def test_it_runs(name: str, scratch: Path) -> None:
    run_quick(name, scratch, nobody=False)


@pytest.mark.timeout(660)
@pytest.mark.parametrize(
    "name",
    [name for name in names() if name not in PURE | ROOT_ONLY | LONG_AS_ANOTHER],
)
def test_it_runs_as_another_user(name: str, scratch: Path) -> None:
    reason = why_not_nobody(scratch)
    if reason is not None:
        pytest.skip(reason)
    run_quick(name, scratch, nobody=True)
