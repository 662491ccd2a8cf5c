"""Archives that attack: nothing that service or agent does with them is seen outside of the folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.fuzzing.archives import (
    OUTSIDE,
    Member,
    beyond_the_longest_path,
    entry,
    folder,
    generated,
    hard_link,
    link,
    packed,
)
from headway.archives import ArchiveRefused
from service.domain.shared.errors import BundleRefused, TooLarge
from service.usecases.storage.bundles import inspect_bundle
from worker_agent.launcher import landlock
from worker_agent.launcher.unpack import unpack
from worker_agent.runs.bundles import BadBundle, extract

ARCHIVES = 2500
THROUGH_A_PROCESS = 100
"""Every so manieth goes through the process that agents use; the others through its code, without what confines it."""
MOST_BYTES, MOST_ENTRIES = 1 << 20, 2000
JOB_USER = 0x70000123


class Surroundings:
    """A working folder deep inside of a tree, all of which but the folder must stay as it is."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.work = top.joinpath("runs", "job", *"123456789abc", "work")
        self.work.mkdir(parents=True)
        for number, above in enumerate(self.work.relative_to(top).parents):
            (top / above / f"kept-{number}").write_text("as it was")
        (self.work.parent / "a").mkdir()
        self._before = self._outside()

    def changes(self) -> set[str]:
        """Return the paths outside of the folder that have changed, appeared or gone."""
        return {str(path) for path, _ in self._before ^ self._outside()}

    def odd(self) -> list[str]:
        """Return the paths in the folder that lead out of it, are no file, folder or link, or run as somebody else."""
        found = []
        for path in self.work.rglob("*"):
            mode = path.lstat().st_mode
            plain = stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
            leads_out = not Path(os.path.realpath(path)).is_relative_to(self.work)
            if leads_out or not plain or mode & 0o7000:
                found.append(str(path))
        return found

    def empty(self) -> None:
        """Make the folder new."""
        shutil.rmtree(self.work)
        self.work.mkdir()

    def _outside(self) -> set[tuple[Path, str]]:
        found = set()
        for path in self.top.rglob("*"):
            if path != self.work and not path.is_relative_to(self.work):
                content = path.read_bytes() if path.is_file() else b""
                found.add((path, f"{path.lstat().st_mode:o} {hashlib.sha256(content).hexdigest()}"))
        return found


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    return Surroundings(tmp_path / "host")


def service_takes(data: bytes) -> bool:
    """Return True if the service accepts an upload of `data`. Nothing but a refusal may be raised."""
    try:
        inspect_bundle(data, max_bytes=MOST_BYTES)
    except (BundleRefused, TooLarge):
        return False
    return True


def agent_takes(data: bytes, around: Surroundings) -> bool:
    descriptor = os.open(around.work, os.O_PATH | os.O_DIRECTORY)
    try:
        unpack(io.BytesIO(data), descriptor, most_bytes=MOST_BYTES, most_entries=MOST_ENTRIES)
    except ArchiveRefused:
        return False
    finally:
        os.close(descriptor)
    return True


def process_takes(data: bytes, around: Surroundings, user: int | None = None) -> bool:
    archive = around.work.with_name("packed")
    archive.write_bytes(data)
    try:
        extract(archive, around.work, user, MOST_ENTRIES)
    except BadBundle as error:
        if error.retryable:
            raise  # it is the archive's fault, whatever it holds
        return False
    finally:
        archive.unlink()
    return True


@pytest.mark.slow
def test_no_generated_archive_is_seen_outside_of_its_folder(around: Surroundings) -> None:
    taken = {"service": 0, "agent": 0, "process": 0}
    for seed in range(ARCHIVES):
        data = generated(seed)
        by_service, by_agent = service_takes(data), agent_takes(data, around)
        assert by_agent >= by_service, f"archive {seed}: what is stored can be unpacked"
        assert around.odd() == [], f"archive {seed}"
        around.empty()
        taken["service"] += by_service
        taken["agent"] += by_agent
        if seed % THROUGH_A_PROCESS == 0:
            assert process_takes(data, around) == by_agent, f"archive {seed}"
            taken["process"] += by_agent
            assert around.odd() == []
            around.empty()
        if seed % 10 == 0:
            assert around.changes() == set(), f"one of the ten archives up to {seed}"
    assert around.changes() == set()
    assert taken["service"] > ARCHIVES // 50, (
        "most are refused, and not all: the others show what may be done"
    )
    assert taken["process"] > 0


ATTACKS: dict[str, Sequence[Member]] = {
    "a path longer than any": beyond_the_longest_path(),
    "through a link": [folder("d"), link("d/up", "."), entry(f"d/up/{OUTSIDE}")],
    "a link to a link to above": [folder("d"), link("a", "d"), link("b", "a/.."), entry("b/x")],
    "a link of which the way comes later": [link("b", "a/../x"), link("a", "d")],
    "a path of which the link comes later": [entry("a/x"), link("a", ".")],
    "a link in other letters": [link("Dir", "."), entry("dir/x")],
    "a link in other accents": [link("\u00e9", "."), entry("e\u0301/x")],
    "a link in the place of a file": [entry("a"), link("a", "b")],
    "a file in the place of a link": [link("a", "b"), entry("a", b"x")],
    "a link with a slash behind it": [link("a", "."), link("b", "a/")],
    "a hard link to a link": [link("a", "b"), hard_link("h", "a")],
    "a hard link through a link": [folder("d"), entry("d/f"), link("a", "d"), hard_link("h", "a/f")],
    "a hard link to nothing": [hard_link("h", "f")],
    "a hard link to above": [hard_link("h", f"../{OUTSIDE}")],
    "a hard link from the top": [hard_link("h", "/etc/passwd")],
    "a link from the top": [link("a", "/")],
    "a link to nothing": [link("a", "")],
    "a folder in a file": [entry("a"), entry("a/b")],
    "a file without a name": [entry(".")],
    "a file with a zero in its name": [entry("f", pax_headers={"path": "a\0b"})],
    "a link with a zero in it": [link("f", "x"), entry("f2", pax_headers={"path": "a\0../../x"})],
    "a header that says another path": [entry("f", b"x", pax_headers={"path": f"../{OUTSIDE}"})],
    "a header that says another link": [
        entry("f", type=tarfile.SYMTYPE, linkname="g", pax_headers={"linkpath": "/etc"})
    ],
    "a name that is not UTF-8": [entry("\udcff")],
    "a long name": [entry("x" * 256)],
    "a deep path": [entry("/".join("x" * 65))],
    "a size below zero": [entry("f", pax_headers={"size": "-1024"})],
    "a file with holes": [
        entry(
            "f",
            b"1\n0\n1\n".ljust(512, b"\0"),
            pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
        )
    ],
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_by_service_and_agent(around: Surroundings, name: str) -> None:
    data = packed(ATTACKS[name])
    assert not service_takes(data)
    assert not process_takes(data, around)
    assert around.changes() == set()


def test_headers_upon_headers_are_refused(around: Surroundings) -> None:
    """The standard library takes each of them in by a call within the one before."""
    long_name = tarfile.TarInfo("././@LongLink")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, 2
    data = gzip.compress((long_name.tobuf(tarfile.GNU_FORMAT) + b"x\0".ljust(512, b"\0")) * 3000)
    assert not service_takes(data)
    assert not process_takes(data, around)


def test_folders_that_no_entry_names_are_counted(around: Surroundings) -> None:
    deep = packed(
        [entry("/".join([str(number), *"abcdefghijklmnopqrstuvwxyz", "f"])) for number in range(80)]
    )
    assert not process_takes(deep, around)
    assert around.changes() == set()


def test_what_is_no_attack_is_made_as_it_is_written(around: Surroundings) -> None:
    data = packed(
        [
            folder("./"),
            folder("pkg/"),
            folder("pkg"),
            entry("./pkg/run.sh", b"#!/bin/sh", mode=0o775, mtime=1_700_000_012),
            entry("lib/x.so.1.2", b"lib"),
            link("lib/x.so.1", "x.so.1.2"),
            link("lib/x.so", "x.so.1"),
            link("pkg/up", "../lib/x.so"),
            hard_link("again", "pkg/run.sh"),
            entry("Makefile", b"1"),
            entry("makefile", b"2"),
        ]
    )
    assert service_takes(data)
    assert process_takes(data, around)
    script = (around.work / "pkg/run.sh").stat()
    assert (stat.S_IMODE(script.st_mode), script.st_mtime, script.st_nlink) == (0o755, 1_700_000_012, 2)
    assert (around.work / "pkg/up").read_bytes() == b"lib"
    assert (around.work / "makefile").read_bytes() == b"2"


@pytest.mark.parametrize("mtime", [0, 12, 2**40])
def test_file_dated_outside_of_1980_to_2242_gets_a_date_that_zip_can_hold(around: Surroundings, mtime: int):
    assert process_takes(packed([entry("a.py", b"1", mtime=mtime)]), around)
    with zipfile.ZipFile(io.BytesIO(), "w") as archive:
        archive.write(around.work / "a.py")
        assert archive.infolist()[0].date_time[0] == 1980


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give jobs users of their own")
def test_the_process_is_the_jobs_user(around: Surroundings) -> None:
    os.chown(around.work, JOB_USER, JOB_USER)
    around.work.chmod(0o700)
    around.work.parent.chmod(0o700)  # nothing but the open folder leads there
    assert process_takes(packed([entry("d/f", b"x"), link("l", "d")]), around, JOB_USER)
    assert {path.lstat().st_uid for path in around.work.rglob("*")} == {JOB_USER}


EXTRACT_ALL = """
import os, sys, tarfile
from worker_agent.launcher.confinement import enter_folder
archive = tarfile.open(fileobj=sys.stdin.buffer)
if len(sys.argv) > 1:
    enter_folder(os.open(".", os.O_PATH), None)
archive.extractall(".", filter="data")
"""


@pytest.mark.skipif(landlock.version() == 0, reason="the kernel has no Landlock")
def test_a_process_that_checks_nothing_is_held_too(around: Surroundings) -> None:
    """The bounds of the process hold where the checks would not: Python's own, of versions before 3.11.13, do not."""
    packed_at = around.top.parent / "packed"
    packed_at.write_bytes(packed(beyond_the_longest_path()))

    def extract_all(*arguments: str) -> tuple[int, bytes]:
        with packed_at.open("rb") as file:
            done = subprocess.run(
                [sys.executable, "-c", EXTRACT_ALL, *arguments],
                cwd=around.work, stdin=file, capture_output=True, check=False,
                env={"PYTHONPATH": str(Path(__file__).parents[3])},
            )  # fmt: skip
        return done.returncode, done.stderr

    code, said = extract_all("confined")
    assert (code, around.changes()) == (1, set()), said
    around.empty()
    code, said = extract_all()
    if code == 0:
        assert any(OUTSIDE in path for path in around.changes()), "the attack is real"
    else:
        assert b"tarfile." in said, "this version of Python refuses it"


def test_a_small_bundle_that_unpacks_to_very_much_is_refused() -> None:
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as archive:
        zeros = tarfile.TarInfo("zeros")
        zeros.size = 80 << 20
        archive.addfile(zeros, io.BytesIO(bytes(zeros.size)))
    with pytest.raises(TooLarge):
        inspect_bundle(inner.getvalue(), max_bytes=256 << 20)
