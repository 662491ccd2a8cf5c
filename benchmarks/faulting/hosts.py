"""What a fault needs of the machine and may not find: a compiler for a wrong clock, a small disk for a full one."""

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
    """Wall clocks of programs, each wrong by as much as is set. `available` is whether there is a C compiler."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = folder / "clock.so"
        folder.mkdir()
        compiler = shutil.which("cc") or shutil.which("gcc")
        self.available = compiler is not None
        if compiler is not None:
            command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(_SOURCE), "-ldl"]
            self.available = subprocess.run(command, capture_output=True, check=False).returncode == 0

    def env(self, name: str) -> dict[str, str]:
        """What a program needs in its environment so that its clock can be set."""
        if not self.available:
            return {}
        self.set(name, 0.0)
        return {"LD_PRELOAD": str(self._library), "FAULTS_CLOCK": str(self._folder / name)}

    def set(self, name: str, wrong_by_s: float) -> None:
        """From now on the program's clock is wrong by so much. Written in place: the program maps the file."""
        with os.fdopen(os.open(self._folder / name, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(struct.pack("d", wrong_by_s))

    def right(self) -> None:
        """Set all of them right."""
        for file in self._folder.iterdir():
            if file != self._library:
                self.set(file.name, 0.0)


class SmallDisk:
    """A folder that can be full: a file system in memory of its own, mounted where root may.

    `how` says which: `tmpfs`; `mode` where it cannot be mounted, so that writing is forbidden instead, which works
    for everybody but root; empty for root without a right to mount: then it cannot be full.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / ".ballast"
        folder.mkdir(parents=True)
        options = ["-t", "tmpfs", "-o", f"size={_STORAGE_MIB}m,mode=700", "tmpfs", str(folder)]
        mounted = shutil.which("mount") is not None and _done(["mount", *options])
        self.how = "tmpfs" if mounted else "" if os.geteuid() == 0 else "mode"

    def fill(self) -> None:
        """Take no byte more."""
        if self.how == "tmpfs":
            with self._ballast.open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(1 << 16))
        else:
            self._set_modes(0o500)

    def empty(self) -> None:
        """Take everything again."""
        if self.how == "tmpfs":
            self._ballast.unlink(missing_ok=True)
        elif self.how == "mode":
            self._set_modes(0o700)

    def close(self) -> None:
        """Let go of the file system, when nobody uses it any more; what is in it is gone then."""
        self.empty()
        if self.how == "tmpfs":
            _done(["umount", "--lazy", str(self.folder)])

    def _set_modes(self, mode: int) -> None:
        for folder, _, _ in os.walk(self.folder, topdown=False):
            Path(folder).chmod(mode)
        self.folder.chmod(mode)


def _done(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
