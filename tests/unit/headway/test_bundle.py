from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from headway.bundle import pack
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import BundleView
from headway.errors import BundleError
from tests.unit.headway.stub import StubService, job_view, ok, refusal


def make(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def test_the_same_files_give_the_same_bytes_whoever_packs_them_and_when(tmp_path: Path):
    first = make(tmp_path / "first", {"b.py": "b", "a/c.py": "c", "a.py": "a"})
    second = make(tmp_path / "second", {"a.py": "a", "a/c.py": "c", "b.py": "b"})
    os.utime(second / "a.py", (1, 1))
    (second / "b.py").chmod(0o600)
    assert pack(first).content == pack(second).content
    assert pack(first).files == ("a.py", "a/c.py", "b.py")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a.py").write_text("other"),
        lambda folder: (folder / "a.py").rename(folder / "z.py"),
        lambda folder: (folder / "a.py").chmod(0o755),
        lambda folder: (folder / "new.py").touch(),
    ],
)
def test_a_change_of_content_name_or_mode_changes_the_digest(tmp_path: Path, change):
    folder = make(tmp_path, {"a.py": "a", "b.py": "b"})
    before = pack(folder).digest
    change(folder)
    assert pack(folder).digest != before


def test_the_archive_unpacks_to_what_was_packed(tmp_path: Path):
    folder = make(tmp_path / "in", {"pkg/run.sh": "#!/bin/sh\n", "data.txt": "ü"})
    (folder / "pkg/run.sh").chmod(0o755)
    (folder / "link.txt").symlink_to("data.txt")
    with tarfile.open(fileobj=io.BytesIO(pack(folder).content)) as archive:
        assert {member.uid for member in archive} == {0}
        archive.extractall(tmp_path / "out", filter="data")
    assert (tmp_path / "out/link.txt").read_text() == "ü"
    assert os.access(tmp_path / "out/pkg/run.sh", os.X_OK)


def test_what_nobody_wants_to_send_is_left_out(tmp_path: Path):
    files = dict.fromkeys(
        [".git/HEAD", ".venv/bin/python", "pkg/__pycache__/a.pyc", "pkg/a.py", "x.pyc", "node_modules/y"], ""
    )
    assert pack(make(tmp_path, files)).files == ("pkg/a.py",)


def test_the_ignore_file_is_honoured_and_sent(tmp_path: Path):
    files = dict.fromkeys(["train.py", "runs/1/x", "keep.bin", "big.bin", "notes.md", "docs/notes.md"], "")
    folder = make(tmp_path, files)
    (folder / ".headwayignore").write_text("# outputs\nruns/\n*.bin\n!keep.bin\n/notes.md\n")
    assert pack(folder).files == (".headwayignore", "docs/notes.md", "keep.bin", "train.py")


def test_gitignore_rules_apply_and_headwayignore_keeps_a_file_again(tmp_path: Path):
    files = dict.fromkeys(["train.py", "secret.env", "sub/other.env", "data/a", "sub/data/b"], "")
    folder = make(tmp_path, files)
    (folder / ".gitignore").write_text("*.env\n/data/\n")
    (folder / "sub/.headwayignore").write_text("!other.env\ndata/\n")
    sent = (".gitignore", "sub/.headwayignore", "sub/other.env", "train.py")
    assert pack(folder).files == sent


def test_rules_of_the_repository_above_apply_in_a_folder_of_it(tmp_path: Path):
    make(tmp_path, {".git/HEAD": "", ".gitignore": "*.env\n/work/data/\n/out/\n"})
    make(tmp_path, dict.fromkeys(["work/a.py", "work/.env", "work/data/x", "out/b.py", "out/c.env"], ""))
    assert pack(tmp_path / "work").files == ("a.py",)
    assert pack(tmp_path / "out").files == ("b.py", "c.env")  # the job file names an ignored folder


def test_empty_folders_are_sent_and_change_the_digest(tmp_path: Path):
    folder = make(tmp_path / "in", {"train.py": "", ".headwayignore": "*.ckpt\n", "ckpt/a.ckpt": ""})
    without = pack(folder).digest
    (folder / "logs/old").mkdir(parents=True)
    bundle = pack(folder)
    assert bundle.digest != without
    assert bundle.files == (".headwayignore", "train.py")
    with tarfile.open(fileobj=io.BytesIO(bundle.content)) as archive:
        archive.extractall(tmp_path / "out", filter="data")
    assert (tmp_path / "out/logs/old").is_dir()
    assert not list((tmp_path / "out/ckpt").iterdir())


def test_too_much_is_refused_with_the_largest_files(tmp_path: Path):
    folder = make(tmp_path, {"small.py": "x", "weights.bin": "x" * 3000, "data.csv": "x" * 2000})
    with pytest.raises(BundleError, match=r"Largest: weights\.bin .*data\.csv .*\.headwayignore"):
        pack(folder, max_bytes=4000)


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, target: str):
    folder = make(tmp_path / "in", {"a.py": ""})
    (folder / "link").symlink_to(target)
    with pytest.raises(BundleError, match="link leads out of the working folder"):
        pack(folder)


def test_what_the_service_would_refuse_is_not_packed(tmp_path: Path):
    folder = make(tmp_path / "in", {"lib/a.py": ""})
    (folder / "through").symlink_to("lib64/a.py")
    pack(folder)
    (folder / "lib64").symlink_to("lib")
    with pytest.raises(BundleError, match="through"):
        pack(folder)
    (folder / "lib64").unlink()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).touch()
    with pytest.raises(BundleError, match="UTF-8"):
        pack(folder)


def test_a_folder_of_too_many_files_is_refused_before_the_upload_with_the_largest(tmp_path: Path):
    folder = make(tmp_path, {"a.py": "a", **{f"data/{number}": "" for number in range(9)}})
    with pytest.raises(
        BundleError, match=r"holds 11 files and folders; 10 may be sent\. Most are in data/ \(9\)"
    ):
        pack(folder, max_entries=10)
    assert len(pack(folder, max_entries=11).files) == 10


@pytest.mark.parametrize("name", [b"lat\xff.bin", b"/".join([b"d" * 200] * 6)])
def test_a_name_that_cannot_be_sent_is_to_be_renamed(tmp_path: Path, name: bytes):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with pytest.raises(BundleError) as caught:
        pack(tmp_path)
    assert caught.value.hint == "Rename or move it, or name it in .headwayignore."


@pytest.mark.parametrize(
    ("name", "hint"),
    [("~/code", "`~` is not expanded"), ("$HOME/code", "`$HOME` is not"), ("code~", "Correct `workdir`")],
)
def test_a_missing_folder_that_only_a_shell_would_expand_is_refused_with_the_cause(
    tmp_path: Path, name: str, hint: str
):
    with pytest.raises(BundleError) as caught:
        pack(tmp_path / name)
    assert caught.value.hint.startswith(hint)


def test_a_missing_or_empty_folder_is_refused(tmp_path: Path):
    with pytest.raises(BundleError, match="does not exist"):
        pack(tmp_path / "nowhere")
    with pytest.raises(BundleError, match="is empty"):
        pack(tmp_path)


def test_a_bundle_that_the_service_has_is_not_sent_again(tmp_path: Path):
    folder = make(tmp_path, {"a.py": "a"})
    digest = pack(folder).digest
    service = StubService()
    route = f"HEAD /api/v1/bundles/{digest}"
    view = BundleView(digest=digest, size_bytes=1, files=1)
    service.on(route, refusal(404, "not_found", "no such bundle"), ok({}))
    service.on("POST /api/v1/bundles", ok(view, 201))
    service.on("POST /api/v1/jobs", ok(job_view(), 201))
    client = service.client()
    for _ in range(2):
        client.submit(JobSpec(name="digits", run="python a.py", workdir="."), base=folder)
    assert len(service.sent(route)) == 2
    assert [request.content for request in service.sent("POST /api/v1/bundles")] == [pack(folder).content]
    assert service.body("POST /api/v1/jobs")["bundle"] == digest
