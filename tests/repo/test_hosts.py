"""Files for hosts, units of systemd and user data, agree with the settings and with their instructions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "deploy" / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
EC2 = ROOT / "deploy" / "ec2"
NEWER = "Unknown key 'DelegateSubgroup'"
"""Warning of systemd before 254, which the unit mentions."""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    """With this test's own Python in the place of the one that the instructions install."""
    here = re.sub(r"/opt/[\w-]+/bin/python", sys.executable, unit.read_text())
    copy = tmp_path / unit.name
    copy.write_text(here)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    about = [
        line for line in done.stderr.splitlines() if unit.stem.split("@")[0] in line and NEWER not in line
    ]
    assert about == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_instructions_install_what_the_unit_starts(unit: Path) -> None:
    text, told = unit.read_text(), (SYSTEMD / "README.md").read_text()
    (environment,) = set(re.findall(r"ExecStart=(/opt/[\w-]+)/bin/python", text))
    (settings,) = re.findall(r"EnvironmentFile=(\S+)", text)
    assert f"python3 -m venv {environment}\n" in told
    assert f"{environment}/bin/pip install" in told
    assert settings in told
    assert f"cp {unit.name} /etc/systemd/system/" in told
    assert "User=headway\n" in text
    assert "useradd --system --create-home headway" in told


def test_settings_in_the_examples_are_read_and_have_no_value() -> None:
    service = "".join(file.read_text() for file in (ROOT / "service").glob("*settings.py"))
    agent = "".join((ROOT / "worker_agent" / name).read_text() for name in ("main.py", "options.py"))
    for example, sources in (("service.env.example", service), ("agent.env.example", agent)):
        for line in (SYSTEMD / example).read_text().splitlines():
            name, _, value = line.partition("=")
            assert f'"{name}"' in sources, name
            assert not value or re.search("PASSWORD|BUCKET|HOST-OF", value), line


def test_user_data_is_a_script_that_the_readme_names() -> None:
    scripts = sorted(EC2.glob("*.sh"))
    assert scripts
    for script in scripts:
        subprocess.run(["sh", "-n", script], check=True)
        assert f"`{script.name}`" in (EC2 / "README.md").read_text()


def test_every_folder_says_how_it_is_used() -> None:
    folders = [folder for folder in (ROOT / "deploy").iterdir() if folder.is_dir()]
    assert [folder.name for folder in folders if not (folder / "README.md").is_file()] == []
