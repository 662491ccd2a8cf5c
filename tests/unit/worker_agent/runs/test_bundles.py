from __future__ import annotations

import gzip
import io
import tarfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from worker_agent.runs.bundles import BadBundle, BundleCache, extract


def archive(**files: bytes) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("_dot_", "."))
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return data.getvalue()


class Downloads:
    """Serves the same archive for every digest, and counts."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.count = 0

    def __call__(self, digest: str, target: Path) -> None:
        self.count += 1
        target.write_bytes(self.data)


def digest(letter: str) -> str:
    return f"sha256:{letter * 64}"


def test_a_bundle_is_downloaded_once_and_unpacked_per_job(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    downloads = Downloads(archive(train_dot_py=b"pass"))
    cache = BundleCache(tmp_path / "cache", downloads)
    for job in ("a", "b", "a"):
        cache.unpack(digest("1"), tmp_path / job / "work")
    assert downloads.count == 1
    assert (tmp_path / "b/work/train.py").read_bytes() == b"pass"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["work"], "nothing half unpacked is left"


def test_without_a_bundle_the_folder_is_empty(tmp_path: Path) -> None:
    downloads = Downloads(b"")
    BundleCache(tmp_path, downloads).unpack(None, tmp_path / "job" / "work")
    assert list((tmp_path / "job" / "work").iterdir()) == []
    assert downloads.count == 0


def test_what_a_job_wrote_stays(tmp_path: Path) -> None:
    cache = BundleCache(tmp_path, Downloads(archive(train_dot_py=b"pass")))
    cache.unpack(digest("1"), tmp_path / "job" / "work")
    (tmp_path / "job/work/checkpoint.pt").touch()
    cache.unpack(digest("1"), tmp_path / "job" / "work")
    assert (tmp_path / "job/work/checkpoint.pt").exists()


def test_the_least_recently_used_bundle_goes_first(tmp_path: Path) -> None:
    cache_folder = tmp_path / "cache"
    cache_folder.mkdir()
    data = archive(blob=bytes(range(256)) * 20)
    cache = BundleCache(cache_folder, Downloads(data), limit_bytes=2 * len(data))
    for job, letter in [("1", "a"), ("2", "b"), ("3", "a"), ("4", "c")]:
        cache.unpack(digest(letter), tmp_path / job)
    assert {path.name[0] for path in cache_folder.iterdir()} == {"a", "c"}


def test_a_failed_download_leaves_nothing(tmp_path: Path) -> None:
    def fail(digest: str, target: Path) -> None:
        target.write_bytes(b"half")
        raise BadBundle("no")

    with pytest.raises(BadBundle):
        BundleCache(tmp_path, fail).unpack(digest("1"), tmp_path / "work")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [b"", b"no archive", archive(a=b"x" * 5000)[:60]],
    ids=["empty", "no archive", "cut short"],  # an archive holds the time it was made at
)
def test_damaged_archives_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.tar.gz").write_bytes(data)
    (tmp_path / "out").mkdir()
    with pytest.raises(BadBundle) as refused:
        extract(tmp_path / "x.tar.gz", tmp_path / "out")
    assert refused.value.code == "bundle_damaged"


def packed(*entries: tuple[tarfile.TarInfo, bytes], headers: dict[str, str] | None = None) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers=headers) as tar:
        for member, content in entries:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return data.getvalue()


def entry(name: str, **fields: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (packed((entry("/etc/cron.d/x"), b"x")), "leaves the folder"),
        (packed((entry("a/../../x"), b"x")), "leaves the folder"),
        (packed((entry("disk", type=tarfile.BLKTYPE), b"")), "neither a file nor a folder"),
        (packed((entry("null", type=tarfile.CHRTYPE), b"")), "neither a file nor a folder"),
        (packed((entry("pipe", type=tarfile.FIFOTYPE), b"")), "neither a file nor a folder"),
        (packed((entry("su", mode=0o4755), b"x")), "rights of another user"),
        (packed((entry("dir", type=tarfile.DIRTYPE, mode=0o2777), b"")), "rights of another user"),
        (packed((entry("a", type=tarfile.SYMTYPE, linkname="/etc"), b""), (entry("a/x"), b"x")), "outside"),
        (packed((entry("x"), b"x"), headers={"comment": "x" * (8 << 20)}), "larger than any path"),
    ],
    ids=["absolute", "up", "disk", "device", "pipe", "setuid", "setgid", "through a link", "header"],
)
def test_what_a_malicious_archive_holds_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "x.tar.gz").write_bytes(data)
    (tmp_path / "out").mkdir()
    with pytest.raises(BadBundle, match=why):
        extract(tmp_path / "x.tar.gz", tmp_path / "out")


def test_an_archive_of_too_many_entries_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(packed(*((entry(f"f{index}"), b"") for index in range(11))))
    for name, most in (("all", 11), ("too many", 10)):
        (tmp_path / name).mkdir()
        with pytest.raises(BadBundle, match="entries") if most == 10 else nullcontext():
            extract(tmp_path / "x.tar.gz", tmp_path / name, most_entries=most)
    assert len(list((tmp_path / "all").iterdir())) == 11


def test_an_archive_that_claims_more_than_a_disk_holds_is_refused_at_once(tmp_path: Path) -> None:
    """Nothing of it is unpacked: its header tells."""
    header = entry("bomb", size=1 << 40).tobuf(tarfile.PAX_FORMAT)
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(header + bytes(10240)))
    (tmp_path / "out").mkdir()
    with pytest.raises(BadBundle, match="over"):
        extract(tmp_path / "x.tar.gz", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_link_inside_the_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(
        packed((entry("a/b"), b"x"), (entry("c", type=tarfile.SYMTYPE, linkname="a/b"), b""))
    )
    (tmp_path / "out").mkdir()
    extract(tmp_path / "x.tar.gz", tmp_path / "out")
    assert (tmp_path / "out" / "c").read_bytes() == b"x"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_do_not_lead_out(tmp_path: Path, kind: bytes) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = kind, "../../secret"
        tar.addfile(member)
    (tmp_path / "x.tar.gz").write_bytes(data.getvalue())
    (tmp_path / "out").mkdir()
    with pytest.raises(BadBundle):
        extract(tmp_path / "x.tar.gz", tmp_path / "out")
