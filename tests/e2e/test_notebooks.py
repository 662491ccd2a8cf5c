"""The page about notebooks does what it says: its blocks are run in one process, in order, against a real cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.contract.views.jobs import JobState
from tests.e2e.conftest import PATIENCE_S, Cluster, end_job
from tools.pages import ROOT, blocks

PAGE = ROOT / "docs" / "guides" / "notebooks.md"


@pytest.mark.slow
def test_the_page_runs(cluster: Cluster, tmp_path: Path) -> None:
    code = [block.text for block in blocks(PAGE) if block.language == "python"]
    assert len(code) == 6
    (tmp_path / "page.py").write_text("\n".join(code))
    named = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    env = {**named, "HEADWAY_URL": cluster.stack.url, "HEADWAY_TOKEN": cluster.stack.token}
    try:
        ran = subprocess.run(
            [sys.executable, "page.py"],
            env={**env, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE_S,
        )
    finally:
        end_job(cluster.client, "from-a-notebook")
        end_job(cluster.client, "resized")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert {"[0] training", "[0] done", "not_found no job has the id or name 'resized-by-nobody'; `headway ps -a` lists them."} <= set(lines)  # fmt: skip
    assert any(line.startswith("SUCCEEDED 0 ") for line in lines)
    assert "1" in lines  # the pinned size
    assert cluster.client.job("resized").state in {JobState.CANCELLED, JobState.CANCELLING}
