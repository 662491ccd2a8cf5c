"""The same script outside Headway: by hand, and under torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.elastic.harness import SCRIPTS
from tests.elastic.test_exactness import expected_counts

ROOT = Path(__file__).parents[2]


def python(*arguments: object, folder: Path, **env: str) -> str:
    """Run an interpreter of its own, with nothing of Headway in its environment; what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_by_hand(tmp_path: Path) -> None:
    printed = python(
        "-W", "error", SCRIPTS / "curve.py", "--epochs", 2, "--result", tmp_path, folder=tmp_path
    )
    assert [line.split()[:4] for line in printed.splitlines()] == [
        ["epoch", "0", "samples", "301"],
        ["epoch", "1", "samples", "602"],
    ]


@pytest.mark.slow
def test_by_hand_with_a_sharded_model(tmp_path: Path) -> None:
    for sharded in (0, 1):
        (tmp_path / str(sharded)).mkdir()
        python(
            "-W",
            "error",
            *(SCRIPTS / "shards.py", "--sharded", sharded, "--result", tmp_path / str(sharded)),
            folder=tmp_path,
        )
    plain, sharded = (
        [[float(word) for word in line.split()] for line in path.read_text().splitlines()]
        for path in sorted(tmp_path.glob("*/epochs-*.txt"))
    )
    assert len(plain) == 12
    assert sharded == [pytest.approx(line, rel=1e-4) for line in plain]


@pytest.mark.slow
def test_by_hand_with_checkpoints(tmp_path: Path) -> None:
    uri = (tmp_path / "kept").as_uri()
    for epochs in (1, 3, 3):
        python(
            SCRIPTS / "count.py",
            *("--epochs", epochs, "--max-local", 3, "--result", tmp_path),
            folder=tmp_path,
            HEADWAY_CHECKPOINT_URI=uri,
        )
        counts = torch.load(tmp_path / "0-of-1.pt", map_location="cpu", weights_only=True)
        torch.testing.assert_close(counts, expected_counts(50, epochs, 8), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_under_torchrun(tmp_path: Path) -> None:
    python(
        *("-m", "torch.distributed.run", "--nproc-per-node", 2),
        *(SCRIPTS / "count.py", "--result", tmp_path),
        folder=tmp_path,
    )
    for rank in range(2):
        counts = torch.load(tmp_path / f"{rank}-of-2.pt", map_location="cpu", weights_only=True)
        torch.testing.assert_close(counts, expected_counts(50, 2, 8), rtol=1e-9, atol=1e-9)


def test_importing_headway_does_not_import_torch(tmp_path: Path) -> None:
    python("-c", "import sys, headway; assert 'torch' not in sys.modules", folder=tmp_path)
