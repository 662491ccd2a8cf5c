from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.bundle import IGNORE_FILE, pack
from headway.errors import BundleError
from headway.ignore_rules import Rules

GIT = shutil.which("git")
FOLDERS = ["a", "b", "A", "a b", "a/b", "b/a", "a/b/a", "#", "[a]", "é"]
NAMES = ["a", "b", "ab", "a.b", "!a", "#b", "[b]", "a b", "a ", "a-b", "é", "B", "1"]


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    """A folder with many names, prepared for git."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for sub in ["", *FOLDERS]:
            (folder / sub).mkdir(exist_ok=True)
            for file in NAMES:
                if not (folder / sub / file).exists() and f"{sub}/{file}".strip("/") not in FOLDERS:
                    (folder / sub / file).touch()
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
        yield folder


def kept_by_git(folder: Path) -> list[str]:
    command = ["git", "ls-files", "-oz", f"--exclude-per-directory={IGNORE_FILE}"]
    listed = subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout
    return sorted(os.fsdecode(name) for name in listed.split(b"\0") if name)


PLAIN = "a b A * ** ? / . \\ ! # - é 1 [ ]"
COMPOSED = "[ab] [!a] [^b] [a-b] [[:alpha:]] []a] [a- /** **/ /**/ \\*"
TOKENS = st.sampled_from([*PLAIN.split(), *COMPOSED.split(), " ", "\\ "])
LINES = st.lists(st.lists(TOKENS, max_size=6).map("".join), max_size=5)
ENDS = st.sampled_from(["\n", "\r\n"])


@pytest.mark.skipif(GIT is None, reason="compares with git")
@settings(deadline=None, max_examples=25)
@given(lines=LINES, inner=LINES, mark=st.booleans(), end=ENDS)
@example(lines=["[ab]/", "*.[!b]", "!a\\ b", "\\#b"], inner=["!ab"], mark=True, end="\r\n")
@example(lines=["a b   ", "a\\ ", "**/b/*", "!/a/b/a"], inner=[], mark=False, end="\n")
def test_files_sent_for_any_rules_are_those_that_git_keeps(
    project: Path, lines: list[str], inner: list[str], mark: bool, end: str
):
    (project / IGNORE_FILE).write_text(("\ufeff" if mark else "") + end.join(lines), newline="")
    (project / "a" / IGNORE_FILE).write_text(end.join(inner), newline="")
    try:
        sent = list(pack(project).files)
    except BundleError:  # every file is excluded
        sent = []
    assert sorted(sent) == kept_by_git(project)


@pytest.mark.parametrize(
    ("rule", "name", "is_folder", "expected"),
    [
        ("data", "data", True, True),
        ("data", "a/b/data", False, True),
        ("data/", "data", False, None),
        ("/data", "a/data", True, None),
        ("!data", "data", True, False),
        ("a/*.txt", "a/x.txt", False, True),
        ("a/*.txt", "a/b/x.txt", False, None),
        ("a/**/x", "a/x", False, True),
        ("a/**/x", "a/b/c/x", False, True),
        ("?.py", "ab.py", False, None),
        ("[Dd]ata/", "Data", True, True),
        ("*.[oa]", "x/y.o", False, True),
        ("with\\ space/", "with space", True, True),
        ("\\#notes", "#notes", True, True),
        ("*.env   ", "secret.env", False, True),
    ],
)
def test_rule_and_name_give_the_decision_of_git(rule: str, name: str, is_folder: bool, expected: bool | None):
    assert Rules(rule.encode()).ignores(name, is_folder=is_folder) is expected


def test_rule_in_latin_1_matches_the_name_in_latin_1_only():
    rules = Rules("café.txt".encode("latin-1"))
    assert rules.ignores(os.fsdecode("café.txt".encode("latin-1")), is_folder=False) is True
    assert rules.ignores("café.txt", is_folder=False) is None
