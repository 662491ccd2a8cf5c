"""Bundles: archives of working folders whose bytes depend only on the names and contents of the files."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from headway.errors import BundleError
from headway.ignore_rules import FolderRules
from headway.layout import MAX_ENTRIES, Layout, LayoutRefused

IGNORE_FILE = ".headwayignore"
_OF_GIT = ".gitignore"
IGNORE_FILES = (_OF_GIT, IGNORE_FILE)
"""Files of ignore rules, in any folder. The rules of the last come after those of the first, so they win."""
MAX_BUNDLE_BYTES = 100 * 2**20
"""Size limit of an uploaded working folder, before compression. Data sets belong in shared storage."""

_NEVER_SENT = ".git"
"""Name that no rule includes again: git itself never lists it."""
DEFAULT_IGNORES = (
    ".hg/",
    ".svn/",
    ".headway/",
    ".venv/",
    "venv/",
    "node_modules/",
    "__pycache__/",
    "*.pyc",
    ".mypy_cache/",
    ".ruff_cache/",
    ".pytest_cache/",
    ".tox/",
    ".ipynb_checkpoints/",
    ".DS_Store",
)


class Excluded(NamedTuple):
    """A path in the working folder that a `.gitignore` excludes. That of a folder ends with `/`."""

    path: str
    ignored_in: str
    """Folder of the `.gitignore` in the working folder, as a prefix of `path`; empty for the top and above."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A packed working folder. `digest` is `sha256:<hex>` of `content`, a tar.gz."""

    content: bytes
    digest: str
    files: tuple[str, ...]
    excluded: tuple[Excluded, ...] = ()
    """Files and folders that a `.gitignore` excludes, so perhaps not on purpose for Headway."""


def pack(folder: Path, *, max_bytes: int = MAX_BUNDLE_BYTES, max_entries: int = MAX_ENTRIES) -> Bundle:
    """Archive a folder, without files that match `DEFAULT_IGNORES` and the rules in `IGNORE_FILES`.

    Two folders with the same names, contents and executable bits give the same bytes, at any time and for any
    user.

    Raises:
        BundleError: the folder does not exist, is empty or exceeds `max_bytes` or `max_entries`; a link leaves the folder or
            passes through another link; a path is too long; or a file cannot be read.
    """
    if not folder.is_dir():
        unexpanded = next((one for one in folder.parts if one.startswith("~") or "$" in one), "")
        hint = f"`{unexpanded}` is not expanded: write the whole path, or one relative to the job file."
        raise BundleError(
            f"The working folder {folder} does not exist.",
            hint if unexpanded else "Correct `workdir` in the job file.",
        )
    excluded: list[Excluded] = []
    paths = sorted(_walk(folder, _rules_above(folder), excluded))
    if not paths:
        raise BundleError(
            f"The working folder {folder} is empty.", f"Check `workdir` and {' and '.join(IGNORE_FILES)}."
        )
    _check_size(folder, paths, max_bytes)
    _check_layout(folder, paths, max_entries)
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in paths:
            _add(archive, folder, name)
    content = buffer.getvalue()
    return Bundle(
        content,
        f"sha256:{hashlib.sha256(content).hexdigest()}",
        tuple(name for name in paths if not name.endswith("/")),
        tuple(sorted(excluded)),
    )


def _rules_above(folder: Path) -> FolderRules:
    """Return the default rules and those of the folders between the repository's top and this folder.

    A folder that these rules exclude is sent all the same, because the job file names it.
    """
    defaults = FolderRules.top(DEFAULT_IGNORES)
    at = folder.resolve()
    top = next((above for above in (at, *at.parents) if (above / ".git").exists()), at)
    rules = defaults
    here = top
    for name in at.relative_to(top).parts:
        rules = rules.read(here, IGNORE_FILES)
        if rules.ignore(name, is_folder=True):
            return defaults
        rules = rules.enter(name)
        here /= name
    return rules


def _walk(folder: Path, above: FolderRules, excluded: list[Excluded], prefix: str = "") -> Iterator[str]:
    """Yield the relative paths of the files, links and empty folders to send; those of folders end with `/`.

    Add to `excluded` the paths that a `.gitignore` excludes.
    """
    try:
        rules = above.read(folder / prefix, IGNORE_FILES)
        entries = list(os.scandir(folder / prefix))
    except OSError as error:
        raise BundleError(f"{error}.", f"Make it readable, or name it in {IGNORE_FILE}.") from None
    sent = False
    for entry in entries:
        name = f"{prefix}{entry.name}"
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name == _NEVER_SENT:
            continue
        excluded_by = rules.excluded_by(entry.name, is_folder=is_folder)
        if excluded_by is not None:
            file, below = excluded_by
            if file == _OF_GIT:
                ignored_in = prefix[: max(0, len(prefix) - len(below))]
                excluded.append(Excluded(f"{name}/" if is_folder else name, ignored_in))
            continue
        if is_folder:
            sent = True
            yield from _walk(folder, rules.enter(entry.name), excluded, f"{name}/")
        elif entry.is_symlink() or entry.is_file():
            sent = True
            yield name  # sockets, pipes and devices have no content to send
    if prefix and not sent:
        yield prefix


def _check_size(folder: Path, paths: Sequence[str], max_bytes: int) -> None:
    files = (name for name in paths if not name.endswith("/"))
    sizes = sorted(((os.lstat(folder / name).st_size, name) for name in files), reverse=True)
    total = sum(size for size, _ in sizes)
    if total <= max_bytes:
        return
    largest = ", ".join(f"{name} ({_mib(size)})" for size, name in sizes[:5])
    raise BundleError(
        f"The working folder {folder} holds {_mib(total)}; {_mib(max_bytes)} may be sent. Largest: {largest}.",
        f"List files that the job does not need in {IGNORE_FILE}, and read data sets from shared storage.",
    )


def _check_layout(folder: Path, paths: Sequence[str], max_entries: int) -> None:
    """Raise the error that the service would raise after the upload."""
    layout = Layout()
    for name in paths:
        path = folder / name
        try:
            if name.endswith("/"):
                layout.add_folder(name)
            elif path.is_symlink():
                layout.add_link(name, _inner_target(path, name))
            else:
                layout.add_file(name)
        except LayoutRefused as error:
            remedy = "Put a file in the place of the link" if path.is_symlink() else "Rename or move it"
            raise BundleError(
                f"The working folder {folder} cannot be sent: {error}.",
                f"{remedy}, or name it in {IGNORE_FILE}.",
            ) from None
    if layout.entries > max_entries:
        count = Counter(name.partition("/")[0] for name in paths if "/" in name)
        largest = ", ".join(f"{name}/ ({number:,})" for name, number in count.most_common(5))
        raise BundleError(
            f"The working folder {folder} holds {layout.entries:,} files and folders; {max_entries:,} may be sent. "
            f"Most are in {largest or 'the folder itself'}.",
            f"List files that the job does not need in {IGNORE_FILE}, and read data sets from shared storage.",
        )


def _add(archive: tarfile.TarFile, folder: Path, name: str) -> None:
    path = folder / name
    entry = tarfile.TarInfo(name.rstrip("/"))  # time 0 and owner 0: nothing of this machine
    if name.endswith("/"):
        entry.type = tarfile.DIRTYPE
        entry.mode = 0o755
        archive.addfile(entry)
        return
    if path.is_symlink():
        entry.type = tarfile.SYMTYPE
        entry.linkname = str(path.readlink())
        archive.addfile(entry)
        return
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{error}.", f"Make it readable, or name it in {IGNORE_FILE}.") from None
    entry.size = len(content)
    entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
    archive.addfile(entry, io.BytesIO(content))


def _inner_target(link: Path, name: str) -> str:
    target = str(link.readlink())
    depth = 0
    for part in (PurePosixPath(name).parent / target).parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or part == "/":
            raise BundleError(
                f"The link {name} leads out of the working folder, to {target}.",
                f"Copy the file into the folder, or name the link in {IGNORE_FILE}.",
            )
    return target


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"
