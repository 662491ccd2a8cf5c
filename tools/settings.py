"""docs/reference/settings.md: every variable that the programs read, with the default and the bounds that stand in the code.

The sources are parsed, so that a variable without a meaning in `tools.variables`, and a meaning without a variable, are errors.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from headway.contract import runtime
from headway.local import guard
from tools.variables import SECTIONS
from worker_agent.options import parser_of

ROOT = Path(__file__).parent.parent
PROGRAMS = ("service", "worker_agent", "headway")
_NAME = re.compile(r"HEADWAY_[A-Z0-9_]*[A-Z0-9]")
_OF_RANKS = {value for name, value in vars(runtime).items() if name.startswith("ENV_")}
_ARGUMENTS = {
    "number_of": ("default", "low", "high"),
    "words_of": ("default",),
    "switch_of": ("default",),
    "get": ("default",),
}
"""What follows `(env, NAME` in the calls that read a variable."""


class Undocumented(Exception):
    """Code and meanings do not agree; the message says where to mend it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How the code reads a variable. None: it does not say."""

    reader: str
    default: Any = None
    low: Any = None
    high: Any = None

    def __str__(self) -> str:
        """As the page shows it."""
        if self.reader == "text_of":
            return "needed"
        if self.reader == "switch_of":
            return "`on`" if self.default else "`off`"
        shown = (
            ""
            if self.default in {None, ""}
            else f"`{self.default:g}`"
            if _is_number(self.default)
            else f"`{self.default}`"
        )
        if self.low is None:
            return shown
        bounds = (
            f"at least {self.low:,.10g}" if self.high is None else f"{self.low:,.10g} to {self.high:,.10g}"
        )
        return ", ".join(filter(None, [shown, bounds]))


def page() -> str:
    """The page. Raises Undocumented."""
    found = _found()
    told = {name for _, meanings in SECTIONS.values() for name in meanings}
    if missing := sorted(found.keys() - told - _OF_RANKS - {guard.MARK}):
        raise Undocumented(f"tools/variables.py has no meaning for {', '.join(missing)}: write one.")
    if stale := sorted(told - found.keys()):
        raise Undocumented(
            f"tools/variables.py has a meaning for {', '.join(stale)}, which no program reads: take it out."
        )
    parts = [_LEAD]
    for title, (lead, meanings) in SECTIONS.items():
        rows = [f"- `{name}`{_reading(name, found)}: {means}" for name, means in meanings.items()]
        parts.append("\n".join([f"## {title}\n\n{lead}\n", *rows, ""]))
    return "\n".join([*parts, *_options()])


_LEAD = """# Settings

Environment variables, in brackets their defaults and bounds. The end of a name is the unit: `_S` seconds, `_D` and `_DAYS` days, `_MIB` MiB, `_PER_S` per second,
`_USD_PER_H` dollars per hour. A wrong value stops the program at its start with a message that names the variable. [Environment of a rank](environment.md)
lists the variables of ranks.
"""


def _reading(name: str, found: Mapping[str, Reading | None]) -> str:
    shown = str(found[name] or "")
    return f" ({shown})" if shown else ""


def _found() -> dict[str, Reading | None]:
    """Every variable that is named in the programs, and how it is read where that is by one of the readers."""
    found: dict[str, Reading | None] = {}
    for file in sorted(path for program in PROGRAMS for path in (ROOT / program).rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        tree = ast.parse(file.read_text())
        under_a_condition = {id(inner) for node in ast.walk(tree) for inner in _guarded(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
                found.setdefault(node.value, None)
            if isinstance(node, ast.Call) and (read := _read(node, module)):
                name, reading = read
                if id(node) in under_a_condition:  # what holds without it is not said here
                    reading = Reading("get", low=reading.low, high=reading.high)
                found[name] = _clearer(found.get(name), reading)
    return found


def _guarded(node: ast.AST) -> Iterator[ast.AST]:
    """What is only done if a condition holds: bodies, not the condition itself."""
    if isinstance(node, ast.If):
        for statement in [*node.body, *node.orelse]:
            yield from ast.walk(statement)
    elif isinstance(node, ast.IfExp):
        yield from ast.walk(node.body)


def _clearer(one: Reading | None, other: Reading) -> Reading:
    """The one that says more: where a variable is read twice, the check that it is set is not the whole story."""
    if one is None or (one.default in {None, ""} and one.low is None and one.reader != "text_of"):
        return other
    return one


def _read(call: ast.Call, module: str) -> tuple[str, Reading] | None:
    reader = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    at = next(
        (
            i
            for i, each in enumerate(call.args[:2])
            if isinstance(each, ast.Constant) and _is_name(each.value)
        ),
        None,
    )
    known = {"text_of", "path_of", *_ARGUMENTS}
    if at is None or reader not in known:
        return None
    name = call.args[at]
    assert isinstance(name, ast.Constant)
    given = dict(zip(_ARGUMENTS.get(reader, ()), call.args[at + 1 :], strict=False))
    given |= {each.arg: each.value for each in call.keywords if each.arg}
    values = {key: _value(given[key], module) for key in ("default", "low", "high") if key in given}
    return str(name.value), Reading(reader, **values)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _value(node: ast.expr, module: str) -> Any:
    """Of a literal or of a constant of the module; None of what is only known when it runs."""
    if isinstance(node, ast.Name):
        return getattr(import_module(module), node.id, None) if node.id.isupper() else None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _options() -> Iterator[str]:
    """Of the agent, whose command line is its own."""
    yield "## Options of `headway agent`\n"
    for action in parser_of({})._actions:  # noqa: SLF001 - argparse has no other way to list them
        if action.option_strings and action.dest not in {"help", "name"}:
            yield f"- `{', '.join(action.option_strings)}`: {_help(action.help, action.default)}"
        elif action.dest == "name":
            yield "- `--name`: name of this node, unique (default: the host's)"
    yield ""


def _help(text: str | None, default: Any) -> str:
    said = (text or "").replace("%(default)s", str(default))
    return " ".join(said.split())
