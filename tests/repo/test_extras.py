"""An extra adds packages to an installed headway, and never replaces it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOR_SCRIPTS = ("transformers", "lightning")


def pack(folder: Path, name: str, version: str, extras: tuple[str, ...] = ()) -> None:
    """Write an empty wheel."""
    stem = f"{name.replace('-', '_')}-{version}"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    about += "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", about)
        wheel.writestr(
            f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


def lowest(requirement: Requirement) -> str:
    """Return the lowest version that the bounds allow."""
    return next(one.version for one in requirement.specifier if one.operator == ">=")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages that the extras need, and a later headway, which must not be taken."""
    folder = tmp_path_factory.mktemp("index")
    pack(folder, "headway", "99", tuple(EXTRAS))
    needed = [*PROJECT["dependencies"], *(text for extra in FOR_SCRIPTS for text in EXTRAS[extra])]
    for one in map(Requirement, needed):
        pack(folder, one.name, lowest(one))
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel of this tree, without its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    pip(python, "install", "--no-index", "--no-deps", str(wheel))
    return python


def pip(python: Path, *arguments: str) -> str:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(python),
        *arguments,
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout


@pytest.mark.parametrize("extra", FOR_SCRIPTS)
def test_an_extra_for_scripts_keeps_the_installed_headway(extra: str, index: Path, installed: Path) -> None:
    options = ["--no-index", "--find-links", str(index), "--dry-run"]
    said = pip(installed, "install", *options, f"headway[{extra}]")
    (planned,) = [line for line in said.splitlines() if line.startswith("Would install")]
    assert f"{extra}-" in planned
    assert "headway-" not in planned


@pytest.mark.parametrize("extra", FOR_SCRIPTS)
def test_an_extra_for_scripts_names_no_headway(extra: str) -> None:
    """pip looks for a package that a requirement names, also on an index with other projects of that name."""
    named = {Requirement(text).name: Requirement(text).specifier for text in EXTRAS[extra]}
    assert "headway" not in named
    for text in EXTRAS["train"]:
        assert named[Requirement(text).name] == Requirement(text).specifier
