"""The Slurm script, run by a stand-in for `srun` that starts what it is given once for each node, as processes of this host."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "headway-agents.sbatch"
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" & done
trap 'kill -TERM $(jobs -p)' TERM
until wait; do :; done
wait
"""
AGENT = """#!/usr/bin/env bash
echo "$@" >> "$RECORD"
trap 'echo stopped $SLURM_NODEID >> "$RECORD"; kill $!; exit 0' TERM
echo up > "$RECORD.$SLURM_NODEID"
cat "$READY" > /dev/null & wait
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def environment(folder: Path, **more: str) -> dict[str, str]:
    executable(folder / "bin" / "srun", SRUN)
    executable(folder / "venv" / "bin" / "python", AGENT)
    os.mkfifo(folder / "forever")
    return {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "HOME": str(folder),
        "HEADWAY_VENV": str(folder / "venv"),
        "HEADWAY_STATE": str(folder / "state"),
        "SLURM_JOB_ID": "77",
        "RECORD": str(folder / "record"),
        "READY": str(folder / "forever"),
        **more,
    }


@pytest.mark.parametrize("missing", ["HEADWAY_URL", "HEADWAY_JOIN_TOKEN"])
def test_it_says_what_is_missing(tmp_path: Path, missing: str) -> None:
    env = environment(tmp_path, HEADWAY_URL="http://here", HEADWAY_JOIN_TOKEN="token")
    del env[missing]
    done = subprocess.run(["bash", SCRIPT], env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert missing in done.stderr
    assert not (tmp_path / "record").exists()


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ({"SLURM_GPUS_ON_NODE": "8"}, []),
        ({"SLURM_CPUS_ON_NODE": "4"}, ["--device-kind", "cpu", "--slots", "4"]),
    ],
)
def test_an_agent_for_each_node_until_the_allocation_ends(
    tmp_path: Path, devices: dict[str, str], expected: list[str]
) -> None:
    env = environment(tmp_path, HEADWAY_URL="http://here", HEADWAY_JOIN_TOKEN="token", **devices)
    for node in (0, 1):
        os.mkfifo(tmp_path / f"record.{node}")
    allocation = subprocess.Popen(["bash", SCRIPT], env=env)
    for node in (0, 1):
        assert (tmp_path / f"record.{node}").read_text() == "up\n"  # waits until its agent is there
    allocation.send_signal(signal.SIGTERM)
    assert allocation.wait(20) == 0
    lines = (tmp_path / "record").read_text().splitlines()
    assert sorted(line for line in lines if line.startswith("stopped")) == ["stopped 0", "stopped 1"]
    started = sorted(line.split() for line in lines if line.startswith("-m"))
    for node, words in enumerate(started):
        assert words[words.index("--name") + 1] == f"slurm-77-{node}"
        assert words[words.index("--own-jobs") + 1 :] == expected
        assert (tmp_path / "state" / str(node)).stat().st_mode & 0o777 == 0o700
    assert not any("token" in line for line in lines), "secrets are not in the arguments"
