from __future__ import annotations

import stat
from pathlib import Path

import pytest

from headway.client.target import save_target, target
from headway.errors import HeadwayError


def test_nothing_configured_says_what_to_do(tmp_path: Path):
    with pytest.raises(HeadwayError, match="headway up"):
        target({"HEADWAY_HOME": str(tmp_path)})


def test_what_up_saved_is_used_and_private(tmp_path: Path):
    file = save_target(tmp_path / "home", "http://saved", "kept")
    found = target({"HEADWAY_HOME": str(tmp_path / "home")})
    assert (found.url, found.token) == ("http://saved", "kept")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_environment_goes_first(tmp_path: Path):
    save_target(tmp_path, "http://saved", "kept")
    home = {"HEADWAY_HOME": str(tmp_path)}
    assert target({**home, "HEADWAY_TOKEN": "given"}).token == "given"
    found = target({**home, "HEADWAY_URL": "http://other"})
    assert (found.url, found.token) == ("http://other", None)
    assert target({**home, "HEADWAY_URL": "http://saved/"}).token == "kept"


def test_a_damaged_file_is_explained(tmp_path: Path):
    (tmp_path / "client.json").write_text("{")
    with pytest.raises(HeadwayError, match=r"client\.json cannot be read"):
        target({"HEADWAY_HOME": str(tmp_path)})
