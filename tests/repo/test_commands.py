"""Command lines of the documentation exist: verbs, options and how many arguments; targets of make, modules, settings."""

from __future__ import annotations

import re
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from typer.core import TyperGroup

from headway.cli.main import app
from tools.pages import ROOT, Command, all_pages, blocks, commands
from worker_agent.options import parser_of

ROOT_COMMAND: Any = typer.main.get_command(app)
PLACEHOLDERS = re.compile(r"^(\[.*|…|\.\.\.|.*…)$")
"""Placeholders for the rest of a command line, or for a part that may be left out."""
PAGES = {str(page.relative_to(ROOT)): page for page in all_pages()}


def problem_of(words: tuple[str, ...], *, whole: bool) -> str | None:
    """Return the error of the command line for these words, errors of values aside; None if there is none.

    In a sentence a command may be no more than its name, so missing arguments say nothing there.
    """
    command, arguments, path = ROOT_COMMAND, list(words[1:]), "headway"
    context = typer.Context(command, info_name=path)
    while isinstance(command, TyperGroup) and arguments and not arguments[0].startswith("-"):
        inner: Any = command.get_command(context, arguments[0])
        if inner is not None:
            word, *arguments = arguments
        else:  # a group may take the word for an argument of its usual verb
            try:
                word, inner, arguments = command.resolve_command(context, arguments)
            except Exception:  # noqa: BLE001 - as below
                return f"{path} has no verb {arguments[0]!r}"
        command, path = inner, f"{path} {word}"
        context = typer.Context(command, info_name=path, parent=context)
    if not whole:
        arguments = [word for word in arguments if not PLACEHOLDERS.match(word)]
    if path == "headway agent":
        return options_of_agent(arguments)
    if isinstance(command, TyperGroup) and not arguments:
        return None if not whole or not command.no_args_is_help else f"{path} wants a verb"
    try:
        command.make_context(path, arguments, parent=context.parent)
    except typer.Exit:  # --help and --version
        return None
    except Exception as error:  # noqa: BLE001 - the types of wrong usage are inner ones of Typer's, and differ by its version
        said = f"{path}: {error}"
        about_values = type(error).__name__ == "BadParameter"
        left_out = type(error).__name__ in {"MissingParameter", "BadOptionUsage"} and not whole
        return None if about_values or left_out else said
    return None


def options_of_agent(arguments: list[str]) -> str | None:
    known = set(chain.from_iterable(action.option_strings for action in parser_of({})._actions))
    unknown = {word.partition("=")[0] for word in arguments if word.startswith("--")} - known
    return f"headway agent has no {', '.join(sorted(unknown))}" if unknown else None


@pytest.mark.parametrize("name", PAGES)
def test_the_command_line_has_what_the_page_says(name: str) -> None:
    found = [
        (command, problem_of(command.words, whole=command.whole))
        for command in commands(PAGES[name], ["headway"])
    ]
    assert not [f"{command}: {problem}" for command, problem in found if problem]


@pytest.mark.parametrize("name", PAGES)
def test_targets_and_modules_of_the_page_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    wrong = []
    for command in commands(PAGES[name], ["make", "python"]):
        if command.words[0] == "make":
            wanted = [word for word in command.words[1:] if "=" not in word and not word.startswith("-")]
            wrong += [str(command) for target in wanted if target not in targets]
        elif command.words[1:2] == ("-m",) and len(command.words) > 2 and is_ours(command.words[2]):
            wrong += [str(command)] if find_spec(command.words[2]) is None else []
    assert not wrong


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in {
        "headway",
        "service",
        "worker_agent",
        "tools",
        "benchmarks",
        "examples",
        "tests",
    }


def names_in(*folders: str) -> set[str]:
    files = chain.from_iterable((ROOT / folder).rglob("*.py") for folder in folders)
    texts = [file.read_text() for file in files] + [(ROOT / "docker-compose.yml").read_text()]
    return set(chain.from_iterable(re.findall(r"HEADWAY_[A-Z0-9_]+", text) for text in texts))


NAMES = names_in("headway", "service", "worker_agent", "tests", "benchmarks", "examples")


@pytest.mark.parametrize("name", PAGES)
def test_variables_of_the_page_exist(name: str) -> None:
    said = set(re.findall(r"HEADWAY_[A-Z0-9_]*[A-Z0-9]", PAGES[name].read_text()))
    assert not {one for one in said - NAMES if not any(known.startswith(f"{one}_") for known in NAMES)}


def test_links_of_the_readme_lead_somewhere() -> None:
    """The site's own are checked by `make docs`."""
    readme = ROOT / "README.md"
    links = re.findall(r"\]\(([^)#\s]+)", readme.read_text())
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("headway shrink digits 2", "has no verb 'shrink'"),
        ("headway resize digits 2 --now", "No such option: --now"),
        ("headway resize digits", "Missing"),
        ("headway resize digits 2 3", "unexpected extra argument"),
        ("headway agent --speed 3", "has no --speed"),
        ("headway budget raise", "has no verb 'raise'"),
    ],
)
def test_a_rotten_line_is_found(line: str, problem: str) -> None:
    assert problem.lower() in (problem_of(tuple(line.split()), whole=True) or "").lower()


def test_a_page_is_read_as_a_shell_reads_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Say `headway ps` or `make`.\n\n```sh\nA=1 headway up \\\n  --slots 2 && headway down  # headway no\n"
        "cat > job.yaml <<'END'\nheadway not-this\nEND\nheadway ps | grep x\n```\n\n```\n$ headway nodes\nheadway is up\n```\n"
    )
    found = [(command.line, " ".join(command.words)) for command in commands(page, ["headway"])]
    assert found == [
        (4, "headway up --slots 2"),
        (4, "headway down"),
        (8, "headway ps"),
        (13, "headway nodes"),
        (1, "headway ps"),
    ]
    assert [block.language for block in blocks(page)] == ["sh", ""]
    assert isinstance(next(commands(page, ["headway"])), Command)
