"""docs/reference/settings.md: every variable that the programs read, with its default and bounds in the code.

The tool parses the sources. A variable without a meaning in `tools.variables`, and a meaning without a variable, are errors.
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
"""Names of the arguments after `env, NAME` in calls that read a variable."""


class Undocumented(Exception):
    """Raised when the code and the documented meanings differ. The message says what to change."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Call that reads a variable. A value is None if the code does not state it."""

    reader: str
    default: Any = None
    low: Any = None
    high: Any = None

    def __str__(self) -> str:
        """Return the text in brackets on the page."""
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
    """Return the page.

    Raises:
        Undocumented: a variable has no meaning, or a meaning has no variable.
    """
    found = _found()
    documented = {name for _, meanings in SECTIONS.values() for name in meanings}
    if missing := sorted(found.keys() - documented - _OF_RANKS - {guard.MARK}):
        raise Undocumented(f"tools/variables.py has no meaning for {', '.join(missing)}: write one.")
    if stale := sorted(documented - found.keys()):
        raise Undocumented(
            f"tools/variables.py has a meaning for {', '.join(stale)}, which no program reads: remove it."
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
    """Return every variable in the programs' sources, with its reading if a known reader reads it."""
    found: dict[str, Reading | None] = {}
    for file in sorted(path for program in PROGRAMS for path in (ROOT / program).rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        tree = ast.parse(file.read_text(encoding="utf-8"))
        under_a_condition = {id(inner) for node in ast.walk(tree) for inner in _guarded(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
                found.setdefault(node.value, None)
            if isinstance(node, ast.Call) and (read := _read(node, module)):
                name, reading = read
                if id(node) in under_a_condition:  # the default without the condition is unknown
                    reading = Reading("get", low=reading.low, high=reading.high)
                found[name] = _clearer(found.get(name), reading)
    return found


def _guarded(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run only under a condition: the branches without the condition itself."""
    if isinstance(node, ast.If):
        for statement in [*node.body, *node.orelse]:
            yield from ast.walk(statement)
    elif isinstance(node, ast.IfExp):
        yield from ast.walk(node.body)


def _clearer(one: Reading | None, other: Reading) -> Reading:
    """Return the reading with more information, for a variable that is read twice."""
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
    """Return the value of a literal or of a module constant, or None if it is known only at run time."""
    if isinstance(node, ast.Name):
        return getattr(import_module(module), node.id, None) if node.id.isupper() else None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _options() -> Iterator[str]:
    """Yield the options of the agent, which the page of the command line does not list."""
    yield "## Options of `headway agent`\n"
    for action in parser_of({})._actions:  # noqa: SLF001 - argparse has no public list of options
        if action.option_strings and action.dest not in {"help", "name"}:
            yield f"- `{', '.join(action.option_strings)}`: {_help(action.help, action.default)}"
        elif action.dest == "name":
            yield "- `--name`: name of this node, unique (default: the host's)"
    yield ""


def _help(text: str | None, default: Any) -> str:
    return " ".join((text or "").replace("%(default)s", str(default)).split())
