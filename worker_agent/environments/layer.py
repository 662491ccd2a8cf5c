"""Packages of the host that an environment takes over: torch, what it needs, and Headway itself.

uv finds their descriptions in the new environment and keeps them if they satisfy the job's requirements, so that
torch is not downloaded. It replaces the others. Afterwards links to the host's files stand in for those it kept.
Descriptions alone are written first, because uv would remove files through a link.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

_ROOTS: Final = ("headway", "torch", "numpy", "obstore")
"""Headway, and what `headway[train]` adds to it."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_PACKAGES: Final = Path(__file__).resolve().parents[2]
"""Folder that this program was imported from, which has Headway too."""
_KEPT_BY: Final = "headway\n"


@dataclass(frozen=True, slots=True)
class HostPackage:
    """A package of the host. `links` are the files and folders that it consists of."""

    name: str
    version: str
    metadata: str
    links: tuple[str, ...]

    @property
    def folder(self) -> str:
        """Name of the folder with the package's description."""
        return f"{re.sub(r'[-_.]+', '_', self.name).lower()}-{self.version}.dist-info"


def installed() -> list[Distribution]:
    """Return the packages of the host that environments may take over, in the order of their names."""
    found: dict[str, Distribution] = {}
    waiting = list(_ROOTS)
    while waiting:
        name = _normal(waiting.pop())
        if name in found:
            continue
        try:
            one = distribution(name)
        except PackageNotFoundError:  # for another platform, or left out by its installer
            continue
        found[name] = one
        waiting += _needs(one)
    return [found[name] for name in sorted(found)]


def names_of(packages: list[Distribution]) -> list[str]:
    """Return what tells one set of the host's packages from another: name, version and folder of each."""
    return [f"{_normal(one.name)}=={one.version} {one.locate_file('')}" for one in packages]


def packages_of(packages: list[Distribution]) -> list[HostPackage]:
    """Return the packages with the description and the links that an environment gets."""
    return [
        HostPackage(
            _normal(one.name), one.version, _headers(one.read_text("METADATA") or ""), tuple(_links(one))
        )
        for one in packages
    ]


def describe(packages: list[HostPackage], site: Path) -> None:
    """Write the description of each package to the folder `site`, as an installer does."""
    for one in packages:
        folder = site / one.folder
        folder.mkdir()
        (folder / "METADATA").write_text(one.metadata, encoding="utf-8")
        (folder / "INSTALLER").write_text(_KEPT_BY, encoding="utf-8")
        names = ("METADATA", "INSTALLER", "RECORD")
        record = "".join(f"{one.folder}/{name},,\n" for name in names)
        (folder / "RECORD").write_text(record, encoding="utf-8")


def link(packages: list[HostPackage], site: Path) -> list[str]:
    """Link the files of each package that uv kept, and return the names of these packages."""
    kept = [one for one in packages if _is_kept(site / one.folder)]
    for one in kept:
        for target in map(Path, one.links):
            _link(target, site / target.name)
    return [one.name for one in kept]


def _is_kept(folder: Path) -> bool:
    installer = folder / "INSTALLER"
    return installer.exists() and installer.read_text(encoding="utf-8") == _KEPT_BY


def _link(target: Path, place: Path) -> None:
    if not place.exists():
        place.symlink_to(target)
    elif place.is_dir() and not place.is_symlink() and target.is_dir():  # a namespace of several packages
        for inner in target.iterdir():
            if not (place / inner.name).exists():
                (place / inner.name).symlink_to(inner)


def _links(one: Distribution) -> Iterator[str]:
    if _normal(one.name) == "headway":  # installed in place, it lists no files
        yield str(_PACKAGES / "headway")
        return
    tops = dict.fromkeys(path.parts[0] for path in one.files or () if path.parts)
    for top in tops:
        place = Path(str(one.locate_file(top)))
        left_out = top in {"..", "__pycache__"} or place.suffix in {".dist-info", ".egg-info", ".pth"}
        if not left_out and place.exists():
            yield str(place)


def _needs(one: Distribution) -> Iterator[str]:
    """Yield the names of the packages that this one needs without extras, for any platform."""
    for line in one.requires or ():
        requirement, _, marker = line.partition(";")
        found = _NAME.match(requirement)
        if found is not None and "extra ==" not in marker:
            yield found[0]


def _headers(metadata: str) -> str:
    """Return the metadata without the long description."""
    return metadata.partition("\n\n")[0] + "\n"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
