"""Write the pages of docs/reference/ and the pictures of docs/images/ that follow from the code: reasons, errors, the command line, settings, metrics, the
environment of ranks, the job file's fields and schema, the API.

Run as `python -m tools.reference`; with `--check` it writes nothing and exits 1 if a page is not what it would write. A change
of the API that breaks its clients is refused, unless `--break` says that it is meant.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from headway.cli.main import app
from headway.contract.meanings import ERRORS, REASONS, Meaning
from tools import environment, jobfile, metrics, openapi, pictures, roles, settings

DOCS = Path(__file__).parent.parent / "docs"


def written() -> dict[str, str]:
    """Every page and picture by its path in docs/. Raises Undocumented."""
    found = {f"reference/{name}": text for name, text in pages().items()}
    return found | {f"images/{name}": text for name, text in pictures.pictures().items()}


def pages() -> dict[str, str]:
    """Every page by its file name."""
    return {
        "reasons.md": _meanings(
            "Reasons",
            "Every state of a job comes with one of these reasons, and with a sentence that has the particulars.",
            {reason.value: meaning for reason, meaning in REASONS.items()},
        ),
        "errors.md": _meanings(
            "Errors",
            "An error of the API is `application/problem+json`; its `code` is one of these and never changes its meaning.",
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
    parts += [
        f"## {code}\n\n{one.means}\n\n**What to do.** {one.do}\n" for code, one in sorted(meanings.items())
    ]
    return "\n".join(parts)


def _command_line() -> Iterator[str]:
    yield "# Command line\n"
    yield "`headway COMMAND --help` says the same in a terminal.\n"
    yield from _commands(typer.main.get_command(app), "headway")


def _commands(command: Any, path: str) -> Iterator[str]:
    """Of a command, or of all that it groups. Their types are inner ones of Typer's, and differ by its version."""
    if not isinstance(command, TyperGroup):
        yield from _command(command, path)
        return
    context = typer.Context(command, info_name=path)
    for name in command.list_commands(context):
        inner: Any = command.get_command(context, name)
        if not inner.hidden:
            yield from _commands(inner, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    context = typer.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"## `{path}`\n"
    yield f"{_one_line(command.help or '')}\n"
    yield f"    {usage}\n"
    rows = [_row(parameter) for parameter in command.params if not _is_usual(parameter)]
    if rows:
        yield "| | |\n| --- | --- |\n" + "\n".join(rows) + "\n"


def _is_usual(parameter: Any) -> bool:
    return parameter.name == "help" or getattr(parameter, "hidden", False)


def _row(parameter: Any) -> str:
    named = parameter.param_type_name == "option"
    names = (
        [*parameter.opts, *parameter.secondary_opts]
        if named
        else [parameter.metavar or parameter.name.upper()]
    )
    told = ", ".join(f"`{name}`" for name in names)
    return f"| {told} | {_one_line(getattr(parameter, 'help', None) or '')} |"


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not current")
    parser.add_argument(
        "--break", dest="breaks", action="store_true", help="change the API although it breaks clients"
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
        if page.is_file() and page.read_text() == text:
            continue
        stale.append(name)
        if not check:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text)
    said = "not current; run `make reference`" if check else "written"
    sys.stdout.writelines(f"docs/{name}: {said}\n" for name in stale)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
