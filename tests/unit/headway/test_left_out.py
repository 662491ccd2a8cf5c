from __future__ import annotations

from pathlib import Path

import pytest

from headway import left_out
from headway.bundle import pack
from headway.left_out import left_out_warning


def warning(folder: Path, files: dict[str, str], command: str = "python train.py") -> str:
    for name, content in {"train.py": "", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return left_out_warning(folder, pack(folder).excluded, command)


def test_data_that_gitignore_excludes_are_named_with_size_and_rule(tmp_path: Path) -> None:
    files = {
        "data/tiny/train.bin": "x" * 2**20,
        "data/tiny/val.bin": "x",
        "data/tiny/prepare.py": "",
        ".gitignore": "*.bin\n",
    }
    said = warning(tmp_path, files)
    assert said.startswith("2 files (1.0 MiB) of ")
    assert "data/tiny/train.bin, data/tiny/val.bin" in said
    assert "`!data/tiny/*.bin` to .headwayignore" in said


@pytest.mark.parametrize(
    ("ignored", "rule_file", "rule"),
    [
        ({".gitignore": "*.bin\n"}, ".headwayignore", "!data/tiny/*.bin"),
        ({".gitignore": "/data/\n"}, ".headwayignore", "!/data/"),
        ({".gitignore": "tiny\n"}, ".headwayignore", "!/data/tiny/"),
        ({".gitignore": "train.bin\n"}, ".headwayignore", "!data/tiny/*.bin"),
        ({"data/.gitignore": "tiny/\n"}, "data/.headwayignore", "!/tiny/"),
        ({"data/tiny/.gitignore": "*.bin\n"}, "data/tiny/.headwayignore", "!/train.bin"),
    ],
)
def test_the_named_rule_sends_the_file(
    tmp_path: Path, ignored: dict[str, str], rule_file: str, rule: str
) -> None:
    said = warning(tmp_path, {"data/tiny/train.bin": "x", **ignored})
    assert f"`{rule}` to {rule_file}" in said
    (tmp_path / rule_file).write_text(f"{rule}\n")
    sent = pack(tmp_path)
    assert "data/tiny/train.bin" in sent.files
    assert left_out_warning(tmp_path, sent.excluded, "python train.py") == ""


def test_a_file_below_an_excluded_folder_and_excluded_itself_takes_two_rules(tmp_path: Path) -> None:
    said = warning(tmp_path, {"data/tiny/train.bin": "x", "data/.gitignore": "*\n!.*\n"})
    assert "`!/tiny/` to data/.headwayignore" in said
    said = warning(tmp_path, {"data/.headwayignore": "!/tiny/\n"})
    assert "`!tiny/*.bin` to data/.headwayignore" in said
    assert warning(tmp_path, {"data/.headwayignore": "!/tiny/\n!tiny/*.bin\n"}) == ""
    assert "data/tiny/train.bin" in pack(tmp_path).files


def test_the_rule_of_a_name_with_wildcards_sends_the_file(tmp_path: Path) -> None:
    said = warning(tmp_path, {"data/a[1]/x.csv": "", ".gitignore": "*.csv\n"})
    assert "`!data/a\\[1]/*.csv`" in said
    (tmp_path / ".headwayignore").write_text("!data/a\\[1]/*.csv\n")
    assert "data/a[1]/x.csv" in pack(tmp_path).files


def test_a_rule_of_the_repository_above_is_answered_in_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("/work/data/x.csv\n")
    assert "`!data/*.csv` to .headwayignore" in warning(tmp_path / "work", {"data/x.csv": ""})


@pytest.mark.parametrize(
    "name",
    [
        "out/ckpt.bin",
        "outputs/data/x.csv",
        "runs/1/x.npy",
        "logs_old/data.csv",
        "checkpoints/a.safetensors",
        "wandb/x.jsonl",
        ".env",
        "data/.cache/x.bin",
        "data/secrets.csv",
        "snapshot.pt",
        "notes.md",
        "mine/pyvenv.cfg",
        "mine/lib/x.npy",
    ],
)
def test_results_caches_and_secrets_are_not_named(tmp_path: Path, name: str) -> None:
    top = name.split("/", maxsplit=1)[0]
    files = {name: "", ".gitignore": f"/{top}\n"} | ({"mine/pyvenv.cfg": ""} if top == "mine" else {})
    assert warning(tmp_path, files) == ""


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("weights/base.pt", "python train.py --init weights/base.pt"),
        ("weights/base.pt", "python train.py --init='./weights/base.pt'"),
        ("weights/base.pt", "python train.py --folder=weights/"),
        ("images/tiny/1.png", "python train.py --dataset=tiny"),
        ("models/checkpoints/base.pt", "python train.py models/checkpoints/base.pt"),
    ],
)
def test_what_the_command_names_is_named(tmp_path: Path, name: str, command: str) -> None:
    files = {name: "", ".gitignore": f"/{name.split('/', maxsplit=1)[0]}/\n"}
    assert name in warning(tmp_path, files, command)
    assert warning(tmp_path, files) == ""


def test_a_number_in_the_command_names_no_folder(tmp_path: Path) -> None:
    files = {"images/3/1.png": "", ".gitignore": "/images/\n"}
    assert warning(tmp_path, files, "python train.py --epochs 3") == ""


def test_what_headwayignore_excludes_is_on_purpose(tmp_path: Path) -> None:
    files = {"data/x.csv": "", ".gitignore": "*.csv\n", ".headwayignore": "*.csv\n"}
    assert warning(tmp_path, files) == ""


def test_a_huge_folder_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "_MOST_FILES", 3)
    files = {f"data/{number}.csv": "" for number in range(5)} | {".gitignore": "data/\n"}
    said = warning(tmp_path, files)
    assert said.startswith("at least 3 files (0.0 MiB)")
