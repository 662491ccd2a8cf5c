"""Wrong clocks and full disks, which need a C compiler and the right to mount."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")
_STORAGE_MIB = 96


class WrongClocks:
    """Wall clocks of programs with a settable error. `available` is False without a C compiler."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = folder / "clock.so"
        folder.mkdir()
        compiler = shutil.which("cc") or shutil.which("gcc")
        self.available = compiler is not None
        if compiler is not None:
            options = ["-shared", "-fPIC", "-O1", "-o", str(self._library), str(_SOURCE), "-ldl"]
            self.available = _succeeds([compiler, *options])

    def env(self, name: str) -> dict[str, str]:
        """Return the environment that a program needs so that its clock can be set."""
        if not self.available:
            return {}
        self.set(name, 0.0)
        return {"LD_PRELOAD": str(self._library), "FAULTS_CLOCK": str(self._folder / name)}

    def set(self, name: str, wrong_by_s: float) -> None:
        """Set the error of the program's clock. The file is written in place, because the program maps it."""
        with os.fdopen(os.open(self._folder / name, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(struct.pack("d", wrong_by_s))

    def correct(self) -> None:
        """Set the errors of all clocks to 0."""
        for file in self._folder.iterdir():
            if file != self._library:
                self.set(file.name, 0.0)


class SmallDisk:
    """Folder that can be made full.

    `how` is the method. `tmpfs` is a small file system in memory, which requires the right to mount. `mode` removes the write
    permission of the folder, which has no effect on root. Root without the right to mount has no method, and `how` is empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / ".ballast"
        folder.mkdir(parents=True)
        options = ["-t", "tmpfs", "-o", f"size={_STORAGE_MIB}m,mode=700", "tmpfs", str(folder)]
        mounted = shutil.which("mount") is not None and _succeeds(["mount", *options])
        self.how = "tmpfs" if mounted else "" if os.geteuid() == 0 else "mode"

    def fill(self) -> None:
        """Make the folder full."""
        if self.how == "tmpfs":
            with self._ballast.open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(1 << 16))
        else:
            self._set_modes(0o500)

    def empty(self) -> None:
        """Make the folder writable again."""
        if self.how == "tmpfs":
            self._ballast.unlink(missing_ok=True)
        elif self.how == "mode":
            self._set_modes(0o700)

    def close(self) -> None:
        """Unmount the file system, with loss of its content, once no process uses it."""
        self.empty()
        if self.how == "tmpfs":
            _succeeds(["umount", "--lazy", str(self.folder)])

    def _set_modes(self, mode: int) -> None:
        for folder, _, _ in os.walk(self.folder, topdown=False):
            Path(folder).chmod(mode)
        self.folder.chmod(mode)


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
