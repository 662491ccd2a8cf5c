"""Write the generated pages of docs/reference/ and pictures of docs/images/.

The pages describe reasons, errors, the command line, settings, metrics, the environment of ranks, the job file's fields and
schema, and the API. Run as `python -m tools.reference`. With `--check` it writes nothing, and exits with 1 if a page is not
current. It refuses an API change that breaks clients, unless `--break` is given.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from headway.cli.main import app
from headway.contract.views.meanings import ERRORS, REASONS, Meaning
from tools import environment, jobfile, metrics, openapi, pictures, roles, settings

DOCS = Path(__file__).parent.parent / "docs"
COMMON = 5
"""Minimum number of commands that share an argument for a common description at the top of the page."""


def written() -> dict[str, str]:
    """Return every page and picture by its path in docs/.

    Raises:
        Undocumented: a page lacks the meaning of a variable or field.
    """
    found = {f"reference/{name}": text for name, text in pages().items()}
    return found | {f"images/{name}": text for name, text in pictures.pictures().items()}


def pages() -> dict[str, str]:
    """Return every page by its file name."""
    return {
        "reasons.md": _meanings(
            "Reasons",
            "Every state of a job has one of these reasons and a message with the details.",
            {reason.value: meaning for reason, meaning in REASONS.items()},
        ),
        "errors.md": _meanings(
            "Errors",
            "Errors of the API are `application/problem+json` with one of these values of `code`, which never change their meaning.",
            ERRORS,
        ),
        "cli.md": "\n".join(_command_line()),
        "job.schema.json": jobfile.dump(),
        "job-fields.md": jobfile.page(),
        "environment.md": environment.page(),
        "openapi.json": openapi.page(),
        "metrics.md": metrics.page(),
        "settings.md": settings.page(),
        "roles.md": roles.page(openapi.document()),
    }


def _meanings(title: str, lead: str, meanings: Mapping[str, Meaning]) -> str:
    parts = [f"# {title}\n\n{lead}\n"]
    parts += [f"## {code}\n\n{one.means}\n\n*Action:* {one.do}\n" for code, one in sorted(meanings.items())]
    return "\n".join(parts)


def _command_line() -> Iterator[str]:
    verbs = dict(_commands(typer.main.get_command(app), "headway"))
    counts = Counter(_row(one) for command in verbs.values() for one in _parameters(command))
    common = [row for row, count in counts.items() if count >= COMMON]
    yield "# Command line\n"
    yield "`headway COMMAND --help` prints the same. Headings show arguments and shared options; a command's own options follow. Unless a command says otherwise:\n"
    yield "\n".join(sorted(common)) + "\n"
    for path, command in verbs.items():
        yield from _command(command, path, common)


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a command, or all commands of a group, by path. Their types are private and differ between versions of Typer."""
    if not isinstance(command, TyperGroup):
        yield path, command
        return
    context = typer.Context(command, info_name=path)
    for name in command.list_commands(context):
        inner: Any = command.get_command(context, name)
        if not inner.hidden:
            yield from _commands(inner, f"{path} {name}")


def _command(command: Any, path: str, common: Collection[str]) -> Iterator[str]:
    own = [one for one in _parameters(command) if _row(one) not in common]
    usage = [_usage(one) for one in _parameters(command) if not _is_option(one) or one not in own]
    yield f"## `{' '.join([path, *usage])}`\n"
    yield f"{_one_line(command.help or '')}\n"
    if own:
        yield "\n".join(_row(one) for one in own) + "\n"


def _parameters(command: Any) -> list[Any]:
    return [one for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _names(parameter: Any) -> list[str]:
    if _is_option(parameter):
        return [*parameter.opts, *parameter.secondary_opts]
    return [parameter.metavar or parameter.name.upper()]


def _usage(parameter: Any) -> str:
    name = _names(parameter)[-1].strip("[]")
    return name if parameter.required else f"[{name}]"


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in _names(parameter))
    return f"- {names}: {_one_line(getattr(parameter, 'help', None) or '')}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def main() -> int:
    """Write or check all pages, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not current")
    parser.add_argument(
        "--break", dest="breaks", action="store_true", help="allow an API change that breaks clients"
    )
    arguments = parser.parse_args()
    check = arguments.check
    broken = [] if arguments.breaks else openapi.broken()
    if broken:
        sys.stdout.writelines(f"breaks clients of the API: {line}\n" for line in broken)
        return 1
    try:
        current = written()
    except settings.Undocumented as error:
        sys.stdout.write(f"{error}\n")
        return 1
    stale = []
    for name, text in current.items():
        page = DOCS / name
        if page.is_file() and page.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text, encoding="utf-8")
    result = "not current; run `make reference`" if check else "written"
    sys.stdout.writelines(f"docs/{name}: {result}\n" for name in stale)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
