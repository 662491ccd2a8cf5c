"""A command imports what it needs: the time that it takes to start follows from that."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
import typer.main

from headway.cli.main import app
from headway.cli.table import ALIASES, NEAREST, PANELS

_VERBS = [name for verbs in PANELS.values() for name in verbs]
_PROGRAM = """
import sys
sys.argv = ["headway", *sys.argv[1:]]
from headway.cli.main import run
try:
    run()
except SystemExit:
    pass
sys.stdout.write("\\n" + "\\n".join(sorted(name for name, one in sys.modules.items() if one is not None)))
"""


def imported_by(*arguments: str) -> set[str]:
    said = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    return set(said.stdout.split("\n"))


def test_the_help_imports_neither_the_client_nor_a_verb() -> None:
    found = imported_by("--help")
    assert "headway.cli.main" in found
    assert not found & {"httpx", "pydantic", "yaml", "headway.client.client", "headway.cli.context"}
    assert not {name for name in found if name.startswith("headway.contract.")}


def test_ps_imports_the_models_of_jobs_alone() -> None:
    found = imported_by("ps", "--help")
    assert {"headway.cli.verbs.jobs.jobs", "headway.contract.views.jobs", "httpx"} <= found
    models = {
        name.removeprefix("headway.contract.") for name in found if name.startswith("headway.contract.")
    }
    assert models <= {
        "output", "run_facts", "spec", "spec_after", "spec_env", "spec_goal", "spec_parameters", "spec_parts",
        "values", "values.balance", "values.devices", "values.dollars", "values.learning_rate_rules", "values.markets",
        "values.patterns", "values.quantities", "values.targets", "values.text", "values.tracker_names",
        "views", "views.forecasts", "views.jobs", "views.progress", "views.stored_files",
    }  # fmt: skip
    assert not found & {"yaml", "click", "tarfile", "headway.jobfile", "torch"}
    others = {name.removeprefix("headway.cli.") for name in found if name.startswith("headway.cli.")}
    assert others <= {
        "context", "group", "main", "numbers", "plain", "table", "render", "render.jobs", "verbs", "verbs.jobs", "verbs.jobs.jobs",
    }  # fmt: skip


@pytest.mark.parametrize("name", _VERBS)
def test_the_table_of_verbs_says_what_their_docstrings_say(name: str) -> None:
    group = typer.main.get_group(app)
    command = group.get_command(typer.Context(group), name)
    summary = next(verbs[name].summary for verbs in PANELS.values() if name in verbs)
    assert " ".join((command.help or "").split("\n\n")[0].split()) == summary


def test_aliases_and_suggestions_name_verbs_and_hide_none() -> None:
    assert set(ALIASES.values()) | set(NEAREST.values()) <= set(_VERBS)
    assert not (set(ALIASES) | set(NEAREST)) & set(_VERBS)
