"""Archives that try to get out of the folder they are unpacked into: one by hand, thousands by chance.

`OUTSIDE` is the name that every one of them tries to make or change above the folder.
"""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from collections.abc import Callable, Sequence

OUTSIDE = "outside"
Member = tuple[tarfile.TarInfo, bytes]


def entry(name: str, content: bytes = b"", **fields: object) -> Member:
    """A member of an archive; `fields` are those of `tarfile.TarInfo`."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in fields.items():
        setattr(member, field, value)
    return member, content


def link(name: str, target: str) -> Member:
    """A symbolic link."""
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> Member:
    """A second name of another member's file."""
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def folder(name: str) -> Member:
    """A folder."""
    return entry(name, type=tarfile.DIRTYPE, mode=0o755)


def packed(
    members: Sequence[Member], *, form: int = tarfile.PAX_FORMAT, headers: dict[str, str] | None = None
) -> bytes:
    """The members as a tar.gz."""
    data = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=data, mode="wb", mtime=0, compresslevel=1) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=form, pax_headers=headers) as archive,
    ):
        for member, content in members:
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def beyond_the_longest_path() -> list[Member]:
    """The pattern of CVE-2025-4517: links nested so deeply that a resolved path is longer than PATH_MAX, from where on `..` is
    no longer followed by whoever checks, and still followed by whoever opens.
    """
    long = "d" * 247
    found: list[Member] = []
    real = ""
    for step in "abcdefghijklmnop":
        found += [folder(f"{real}{long}"), link(f"{real}{step}", long)]
        real += f"{long}/"
    end = "/".join("abcdefghijklmnop") + "/" + "l" * 254
    found += [link(end, "../" * 16), link("escape", end + "/.." * 12)]
    return [*found, entry(f"escape/{OUTSIDE}", b"written by an archive")]


def generated(seed: int) -> bytes:
    """An archive of a dozen members that lead through one another, the same for the same seed."""
    choose = random.Random(seed)
    names = ["a", "b", "c", "A", "a/b", "b/a", "a/b/c", "c/b/a", "./a", "a/./b", "a//b", "a/", "B/c"]
    tricks: list[Callable[[], str]] = [
        lambda: choose.choice(names),
        lambda: f"{choose.choice(names)}/{OUTSIDE}",
        lambda: "/".join(choose.choice("abcAB") for _ in range(choose.randint(1, 8))),
        lambda: choose.choice(["..", "../..", "a/../..", "./../.", "a/b/../../.."]) + f"/{OUTSIDE}",
        lambda: choose.choice(["/", "//", "/tmp/", "/proc/self/cwd/../"]) + OUTSIDE,
        lambda: choose.choice(["", ".", "..", "./", "/", " ", "\n", "a\\..\\b"]),
        lambda: "x" * choose.choice([100, 255, 256, 4096]),
        lambda: "/".join(["y" * choose.choice([1, 100, 200])] * choose.choice([16, 70, 300])),
        lambda: choose.choice(["a\0b", "\udcff/a", "\u212a/a", "\u00e9", "e\u0301", "a\u202e"]),
    ]
    targets: list[Callable[[], str]] = [
        *tricks,
        lambda: "../" * choose.randint(1, 12),
        lambda: f"{choose.choice(names)}/{'../' * choose.randint(1, 4)}{OUTSIDE}",
        lambda: choose.choice(names) + "/.." * choose.randint(1, 4),
    ]
    members: list[Member] = beyond_the_longest_path() if choose.random() < 0.02 else []
    for _ in range(choose.randint(1, 12)):
        name = choose.choice(tricks[:3] if choose.random() < 0.8 else tricks)()
        match choose.choice("ffflllhdds"):
            case "f":
                members.append(entry(name, b"x" * choose.choice([0, 1, 600])))
            case "l":
                members.append(link(name, choose.choice(targets)()))
            case "h":
                members.append(hard_link(name, choose.choice(targets)()))
            case "d":
                members.append(folder(name))
            case _:
                members.append(_special(choose, name, choose.choice(targets)()))
    return _damaged(choose, members)


def _special(choose: random.Random, name: str, target: str) -> Member:
    kinds = [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, b"9"]
    if choose.random() < 0.4:  # what its header says is overridden by one that goes before
        overriding = {choose.choice(["path", "linkpath"]): target}
        return entry(name, b"x", pax_headers=overriding)
    if choose.random() < 0.3:
        return entry(name, b"x", mode=choose.choice([0o4755, 0o2755, 0o1777, 0o000]))
    return entry(name, type=choose.choice(kinds), linkname=target)


def _damaged(choose: random.Random, members: Sequence[Member]) -> bytes:
    form = choose.choice([tarfile.PAX_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
    data = packed(members, form=form)
    if choose.random() < 0.1:
        raw = bytearray(gzip.decompress(data))
        for _ in range(choose.randint(1, 4)):
            raw[choose.randrange(len(raw))] = choose.randrange(256)
        data = gzip.compress(bytes(raw), compresslevel=1)
    return data
