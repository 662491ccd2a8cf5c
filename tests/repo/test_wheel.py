"""The wheel has what git tracks of the programs, all of it, and nothing else; what it says of itself is true."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("headway", "service", "worker_agent")
MIGRATIONS = "migrations/"
"""In the tree beside the package that runs them, in the wheel inside of it."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from this tree, by the tools that are installed."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def tracked() -> set[str]:
    """Files of the programs as they are called in the wheel: those of git, and those that nobody told it to ignore."""
    if not (ROOT / ".git").exists():
        pytest.skip("NO GIT HERE: WHAT THE WHEEL SHOULD HAVE IS NOT KNOWN")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *PACKAGES, MIGRATIONS]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    there = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    return {f"service/{name}" if name.startswith(MIGRATIONS) else name for name in there}


def test_it_has_every_file_of_the_programs_and_no_other(wheel: zipfile.ZipFile) -> None:
    own = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert own == tracked()
    assert {name.split("/")[0] for name in own} == set(PACKAGES)


def test_it_names_no_folder_of_whoever_built_it(wheel: zipfile.ZipFile) -> None:
    home = str(ROOT).encode()
    assert [name for name in wheel.namelist() if home in wheel.read(name)] == []


def test_licences_of_what_others_wrote_are_in_it(wheel: zipfile.ZipFile) -> None:
    """A folder with a licence of its own is somebody else's work."""
    others = {name for name in tracked() if name.rpartition("/")[2].startswith("LICENSE")}
    assert others
    assert set(metadata(wheel).get_all("License-File", [])) == others | {"LICENSE"}
    kept = {name.partition("/licenses/")[2] for name in wheel.namelist() if "/licenses/" in name}
    assert kept == others | {"LICENSE"}


def test_every_extra_that_anybody_is_told_to_install_is_one(wheel: zipfile.ZipFile) -> None:
    extras = set(metadata(wheel).get_all("Provides-Extra", []))
    files = [ROOT / "README.md", ROOT / "Dockerfile"]
    for folder in ("docs", "deploy", *PACKAGES):
        files += [file for file in (ROOT / folder).rglob("*") if file.suffix in {".md", ".py", ".sh"}]
    told = {
        f"{extra} in {file.relative_to(ROOT)}"
        for file in files
        for extras_told in re.findall(r"(?:headway|\{wheel\}|'\.)\[([a-z0-9,]+)\]", file.read_text())
        for extra in extras_told.split(",")
        if extra not in extras
    }
    assert not told
    assert "all" in extras


def test_the_command_line_is_installed(wheel: zipfile.ZipFile) -> None:
    (entry,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "headway = headway.cli.main:run" in wheel.read(entry).decode()
