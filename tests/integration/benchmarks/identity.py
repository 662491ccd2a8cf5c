"""Programs run as another user than root, wherever the interpreter is installed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NOBODY = 65534
ROOT = Path(__file__).parents[3]


def as_nobody(argv: Sequence[str], scratch: Path) -> list[str]:
    """The command that runs `argv` as `nobody`. To be run by root.

    An interpreter in a folder that is closed to others, such as /root, is mounted into an open one at the same path. Nobody else
    sees that.

    Args:
        argv: the command.
        scratch: an empty folder.
    """
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs", *argv]
    python = Path(sys.base_prefix).resolve()
    closed = next((folder for folder in reversed(python.parents) if not folder.stat().st_mode & 0o001), None)
    if closed is None:
        return drop
    aside = scratch / "python"
    aside.mkdir(exist_ok=True)
    steps = [
        ["mount", "--bind", str(python), str(aside)],
        ["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(closed)],
        ["mkdir", "-p", str(python)],
        ["mount", "--bind", str(aside), str(python)],
        ["exec", *drop],
    ]
    script = " && ".join(shlex.join(step) for step in steps)
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]


def why_not_nobody(scratch: Path) -> str | None:
    """Why programs cannot be run as `nobody` here; None if they can."""
    if os.geteuid() != 0:
        return "only root can become another user"
    if shutil.which("setpriv") is None or shutil.which("unshare") is None:
        return "setpriv and unshare are not installed"
    tried = subprocess.run(
        as_nobody([sys.executable, "-c", "import headway"], scratch),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else f"nobody cannot run Python here: {tried.stderr.strip()[-200:]}"
