from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from worker_agent.environments.inputs import BadRequirements, read_inputs
from worker_agent.environments.settings import determining, local_folders, uv_settings


def read(work: Path, requirements: str | None = "requirements.txt", lock: str | None = None):
    return read_inputs(SimpleNamespace(requirements=requirements, lock=lock), work)


def test_job_without_file_has_no_inputs(tmp_path: Path) -> None:
    assert read(tmp_path, None) is None


def test_requirements_bring_the_files_that_they_include(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "torch>=2.6  # from the host\n-r parts/a.txt\n--index-url https://index.example/simple\n-f /srv/wheels\n"
    )
    (tmp_path / "parts" / "a.txt").write_text("-c ../pins.txt\nnumpy ; python_version > '3'\n")
    (tmp_path / "pins.txt").write_text("numpy<3\n")
    found = read(tmp_path)
    assert set(found.files) == {"requirements.txt", "parts/a.txt", "pins.txt"}
    assert (found.main, found.locked) == ("requirements.txt", False)


@pytest.mark.parametrize(
    "line",
    [
        "-e .",
        "--editable ./pkg",
        "./pkg",
        "../pkg",
        "/srv/pkg",
        "~/pkg",
        "file:///srv/pkg",
        "pkg @ file:///srv/pkg",
        "pkg @ ./pkg",
        "wheels/pkg-1.0-py3-none-any.whl",
        "--find-links wheels",
        "-f wheels",
        "-r ../../other.txt",
        "-r https://example.com/r.txt",
        "numpy\\\n\n-e .",
    ],
)
def test_requirement_of_one_host_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"numpy\n{line}\n")
    with pytest.raises(BadRequirements, match=r"requirements\.txt"):
        read(tmp_path)


def test_address_of_a_package_is_taken(tmp_path: Path) -> None:
    lines = "pkg @ https://example.com/pkg-1.0.tar.gz\ngit-pkg @ git+https://example.com/x@v1\nhttps://example.com/a.b/c\n"
    (tmp_path / "requirements.txt").write_text(lines)
    assert read(tmp_path).files == {"requirements.txt": lines}


@pytest.mark.parametrize("link", ["requirements.txt", "folder/requirements.txt"])
def test_link_in_the_working_folder_is_not_followed(tmp_path: Path, link: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "requirements.txt").write_text("hidden\n")
    work = tmp_path / "work"
    work.mkdir()
    top = link.partition("/")[0]
    (work / top).symlink_to(tmp_path / "secret" / ("requirements.txt" if top == link else ""))
    with pytest.raises(BadRequirements, match="no file"):
        read(work, link)


def test_lock_needs_its_project_and_refuses_packages_of_folders(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text('[[package]]\nname = "train"\nsource = { virtual = "." }\n')
    with pytest.raises(BadRequirements, match=r"pyproject\.toml"):
        read(tmp_path, None, "uv.lock")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'train'\n")
    assert set(read(tmp_path, None, "uv.lock").files) == {"uv.lock", "pyproject.toml"}
    (tmp_path / "uv.lock").write_text('[[package]]\nname = "other"\nsource = { directory = "../other" }\n')
    with pytest.raises(BadRequirements, match="other"):
        read(tmp_path, None, "uv.lock")


def test_project_with_a_source_of_one_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.uv.sources]\nmine = { path = '../mine' }\n")
    with pytest.raises(BadRequirements, match="mine"):
        read(tmp_path, "pyproject.toml")


def test_uv_gets_its_index_and_nothing_that_moves_its_files() -> None:
    env = {
        "UV_INDEX_URL": "https://a",
        "UV_INDEX_MINE_PASSWORD": "x",
        "UV_CACHE_DIR": "/",
        "UV_PROJECT_ENVIRONMENT": "/",
        "UV_CONFIG_FILE": "/",
        "UV_PYTHON": "/",
        "https_proxy": "http://p",
        "AWS_SECRET_ACCESS_KEY": "x",
        "PATH": "/",
    }
    found = uv_settings(env)
    assert set(found) == {"UV_INDEX_URL", "UV_INDEX_MINE_PASSWORD", "https_proxy"}
    assert set(determining(found)) == {"UV_INDEX_URL", "UV_INDEX_MINE_PASSWORD"}
    assert local_folders({"UV_FIND_LINKS": "/srv/a,https://x/ file:///srv/b"}) == ["/srv/a", "/srv/b"]
