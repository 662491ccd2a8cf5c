"""Warning about files of a working folder that `.gitignore` keeps from the upload and that the script probably reads."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

from headway.bundle import IGNORE_FILE, Excluded

_DATA = re.compile(
    r"\.(arrow|bin|csv|feather|gguf|h5|hdf5|jsonl|lmdb|mdb|npy|npz|parquet|pkl|safetensors|tfrecord|tsv|zst)",
    re.IGNORECASE,
)
"""Suffixes of data and of weights to start from. Those that scripts save, such as `.pt`, are usually results."""
_DATA_FOLDER = re.compile(r"data|dataset|datasets|corpus")
_RESULTS = re.compile(
    r"\..*|(out|output|result|log|run|save)s?([-_].*)?|ckpts?|checkpoints?|snapshots?|wandb|mlruns|lightning_logs|tensorboard|"
    r"artifacts?|build|dist|env|site-packages|target|htmlcov"
)
"""Names of folders that a script, a tool or an installation writes, and hidden names (`.env`, `.cache`)."""
_SECRET = re.compile(r"secret|credential|password|token\.|id_rsa|\.(pem|key)$", re.IGNORECASE)
_WORDS = re.compile(r"[\s='\",:;()]+")
_MOST_FILES = 20_000
"""Excluded files that are looked at. A folder can hold millions of images."""
_SHOWN = 3
"""Names and rules in the message."""


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    size_bytes: int
    rule: str
    rule_file: str


def left_out_warning(folder: Path, excluded: Sequence[Excluded], command: str) -> str:
    """Return a sentence about files that were not sent and look like input of the script; empty if there are none.

    A file looks like input if the command names it or a folder of its path, if its suffix is one of data or weights, or if
    it is in a folder for data. Results of earlier runs, hidden files and secrets do not, unless the command names the file.

    Args:
        folder: the working folder.
        excluded: paths in it that a `.gitignore` excludes.
        command: the command of the job.
    """
    words = {word.removeprefix("./").rstrip("/") for word in _WORDS.split(command) if not word.isdigit()} - {
        "",
        ".",
    }
    every = (found for one in excluded for found in _files(folder, one, words))
    read = list(islice(every, _MOST_FILES))
    found = sorted(
        (one for one in read if _looks_like_input(one.name, words)),
        key=lambda one: (-one.size_bytes, one.name),
    )
    if not found:
        return ""
    names = ", ".join(one.name for one in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    rules: dict[str, list[str]] = {}
    for rule, file in list(dict.fromkeys((one.rule, one.rule_file) for one in found))[:_SHOWN]:
        rules.setdefault(file, []).append(f"`{rule}`")
    lines = ", and ".join(f"{' and '.join(own)} to {file}" for file, own in rules.items())
    least = "at least " if len(read) == _MOST_FILES else ""
    files, were, them = (
        ("1 file", "was", "it") if len(found) == 1 else (f"{len(found):,} files", "were", "them")
    )
    size_mib = sum(one.size_bytes for one in found) / 2**20
    return (
        f"{least}{files} ({size_mib:.1f} MiB) of {folder} {were} not sent, because .gitignore excludes {them}: {names}{more}. If "
        f"the script reads {them}, add {lines}, or give the script an absolute path on the nodes; if not, name {them} in "
        f"{IGNORE_FILE}."
    )


def _files(folder: Path, excluded: Excluded, words: set[str]) -> Iterator[_Found]:
    """Yield the regular files at or below an excluded path, without hidden folders, environments and folders of results."""
    path = excluded.path
    rule, rule_file = _rule(excluded), f"{excluded.ignored_in}{IGNORE_FILE}"
    if not path.endswith("/"):
        yield from _regular(folder, path, rule, rule_file)
        return
    for at, inner, files in os.walk(folder / path):
        below = Path(at).relative_to(folder).as_posix()
        if "pyvenv.cfg" in files:
            inner.clear()
            continue
        inner[:] = sorted(
            name
            for name in inner
            if not _RESULTS.fullmatch(name) or any(word.startswith(f"{below}/{name}/") for word in words)
        )
        for name in sorted(files):
            yield from _regular(folder, f"{below}/{name}", rule, rule_file)


def _regular(folder: Path, name: str, rule: str, rule_file: str) -> Iterator[_Found]:
    try:
        found = os.lstat(folder / name)
    except OSError:
        return  # removed since, or unreadable for this user and so for the script
    if stat.S_ISREG(found.st_mode):
        yield _Found(name, found.st_size, rule, rule_file)


def _looks_like_input(name: str, words: set[str]) -> bool:
    if name in words:
        return True
    path = PurePosixPath(name)
    folders = path.parts[:-1]
    if _SECRET.search(name) or any(_RESULTS.fullmatch(part) for part in path.parts):
        return False
    named = not words.isdisjoint(folders) or any(str(above) in words for above in path.parents)
    return (
        named
        or _DATA.fullmatch(path.suffix) is not None
        or any(_DATA_FOLDER.fullmatch(part) for part in folders)
    )


def _rule(excluded: Excluded) -> str:
    """Return the rule that sends an excluded folder, or files like this one beside it, relative to its `.gitignore`."""
    inner = excluded.path.removeprefix(excluded.ignored_in)
    path = PurePosixPath(inner)
    if path.suffix and len(path.parts) > 1 and not inner.endswith("/"):
        return f"!{_literal(str(path.parent))}/*{_literal(path.suffix)}"
    return f"!/{_literal(inner)}"


def _literal(text: str) -> str:
    return re.sub(r"([\\*?\[])", r"\\\1", text)
