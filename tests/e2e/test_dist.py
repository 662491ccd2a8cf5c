"""The files of `make dist`, each extra installed into an environment of its own and used from an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from headway.local.ports import free_port

ROOT = Path(__file__).parents[2]
LIMIT_S = 900
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * LIMIT_S)]

SERVICE = """
import asyncio, httpx
from service.main import Service
from service.settings import read_settings

settings = read_settings({
    "HEADWAY_DATABASE_URL": "postgresql://headway@127.0.0.1:1/none",
    "HEADWAY_REDIS_URL": "redis://127.0.0.1:1/0",
    "HEADWAY_STORAGE_URL": "memory:///",
})

async def look():
    app = Service(settings).app()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://headway") as client:
        for path in (
            "/livez", "/openapi.json", "/docs", "/redoc", "/help/reasons", "/auth/login", "/static/console.css",
            "/static/uplot/uPlot.iife.min.js", "/static-offline-docs/swagger-ui-bundle.js",
        ):
            answer = await client.get(path)
            assert answer.status_code == 200, (path, answer.status_code)

asyncio.run(look())
print("it answers")
"""
"""The pages and the API's description with what they load, of a service that has no stores."""
TRAIN = """
import torch
import headway
from torch.utils.data import TensorDataset

run = headway.init()
model = torch.nn.Linear(4, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = torch.randn(256, 4)
loader = run.loader(TensorDataset(data, data.sum(1, keepdim=True)), global_batch=32)
for epoch in run.epochs(3):
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} is done", flush=True)
"""
JOB = """
name: from-a-wheel
run: python train.py
workdir: .
elastic: {min: 1, max: 2}
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both files."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


def build(tree: Path, folder: Path, *kinds: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), *kinds, str(tree)]
    subprocess.run(command, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)


class Installed:
    """An environment with the wheel, and an empty folder to use it from.

    Args:
        folder: an empty one, for both.
        dist: where the wheel is.
        extras: such as `[service]`, or nothing.
    """

    def __init__(self, folder: Path, dist: Path, extras: str) -> None:
        self.bin, self.work = folder / "venv" / "bin", folder / "work"
        self.work.mkdir()
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
        self._env |= {"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(folder)}
        self._env.pop("PYTHONPATH", None)
        (wheel,) = dist.glob("*.whl")
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=LIMIT_S)
        pins = ROOT / "constraints.txt"
        self.run(str(self.bin / "python"), "-m", "pip", "install", "-q", "-c", str(pins), f"{wheel}{extras}")

    def run(self, *command: str, fails: bool = False) -> str:
        """Run a command and return its output. Fail unless it ends as expected."""
        done = subprocess.run(
            command,
            cwd=self.work,
            env=self._env,
            timeout=LIMIT_S,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert (done.returncode != 0) is fails, f"{' '.join(command)}:\n{done.stdout}"
        assert "Traceback" not in done.stdout, done.stdout
        return done.stdout

    def python(self, text: str) -> str:
        return self.run(str(self.bin / "python"), "-c", text)

    def headway(self, *words: str, fails: bool = False) -> str:
        return self.run(str(self.bin / "headway"), *words, fails=fails)

    def has(self, module: str) -> bool:
        found = f"import importlib.util as u; print(u.find_spec({module!r}) is not None)"
        return self.python(found).strip() == "True"


def files_of(folder: Path) -> dict[str, int]:
    """Checksums of the wheel's files, but for the list of them."""
    (wheel,) = folder.glob("*.whl")
    return {one.filename: one.CRC for one in zipfile.ZipFile(wheel).infolist()}


def test_the_source_distribution_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    (tree / ".git").mkdir()  # the rules of what is ignored are its own, and not of a tree around it
    (tmp_path / "again").mkdir()
    build(tree, tmp_path / "again", "--wheel")
    assert files_of(tmp_path / "again") == files_of(dist)


def test_a_client_alone(dist: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path, dist, "")
    assert "submit" in installed.headway("--help")
    installed.python("import headway, headway.client.client, headway.contract.spec")
    for heavy in ("torch", "fastapi", "sqlalchemy", "numpy", "redis"):
        assert not installed.has(heavy), heavy
    # Messages name missing packages and the remedy.
    assert "headway up" in installed.headway("ps", fails=True)
    assert "pip install 'headway[agent]'" in installed.headway("agent", fails=True)
    assert "Traceback" not in installed.headway("up", fails=True)


def test_a_service_alone(dist: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path, dist, "[service]")
    assert installed.python(SERVICE).strip().endswith("it answers")
    assert not installed.has("torch")
    assert "is not set; see docs" in installed.run(
        str(installed.bin / "python"), "-m", "service", "api", fails=True
    )


def test_an_agent_alone(dist: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path, dist, "[agent]")
    assert "--state-dir" in installed.run(str(installed.bin / "python"), "-m", "worker_agent", "--help")
    assert not installed.has("torch")
    assert not installed.has("fastapi")


def test_a_script_without_a_cluster(dist: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path, dist, "[train]")
    (installed.work / "train.py").write_text(TRAIN)
    assert "epoch 2 is done" in installed.run(str(installed.bin / "python"), "train.py")
    assert not installed.has("redis")


def test_everything_on_one_machine_trains_a_job_to_its_end(dist: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path, dist, "[all]")
    (installed.work / "train.py").write_text(TRAIN)
    (installed.work / "job.yaml").write_text(JOB)
    port = str(free_port())
    try:
        installed.headway("up", "--detach", "--agents", "1", "--slots", "2", "--port", port)
        assert "SUCCEEDED" in installed.headway("submit", "--wait", "job.yaml")
        assert "epoch 2 is done" in installed.headway("logs", "from-a-wheel")
    finally:
        installed.headway("down")
        shutil.rmtree(tmp_path / ".headway", ignore_errors=True)
