"""Tiny wheels for tests of environments: real packages that uv installs from a folder, without an index."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str, source: str, *, needs: tuple[str, ...] = ()) -> Path:
    """Write a pure wheel with one module to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {one}\n" for one in needs),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in files.items():
            archive.writestr(inner, text)
    return path


def make_sdist(folder: Path, name: str, version: str, setup: str) -> Path:
    """Write a source distribution whose build backend, in the archive itself, begins with the given code."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = setup + (
        "\nimport zipfile"
        "\ndef build_wheel(folder, settings=None, metadata=None):"
        f"\n    info = '{name}-{version}.dist-info'"
        f"\n    path = '{name}-{version}-py3-none-any.whl'"
        "\n    with zipfile.ZipFile(folder + '/' + path, 'w') as archive:"
        f"\n        archive.writestr('{name}.py', 'VALUE = 1\\n')"
        f"\n        archive.writestr(info + '/METADATA', 'Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n')"
        "\n        archive.writestr(info + '/WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')"
        f"\n        archive.writestr(info + '/RECORD', '{name}.py,,\\n')"
        "\n    return path\n"
    )
    project = (
        f'[project]\nname = "{name}"\nversion = "{version}"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for inner, text in {"backend.py": backend, "pyproject.toml": project}.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{inner}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path
