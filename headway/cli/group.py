"""The group of all verbs.

It imports the verb that runs, suggests a verb for an unknown word, and prints errors.
"""

from __future__ import annotations

import errno
import gc
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from inspect import cleandoc
from itertools import pairwise
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from headway.cli.numbers import read_plainly
from headway.cli.table import AGENT_SETTINGS, ALIASES, BARE_ALIASES, NEAREST, PANELS
from headway.errors import HeadwayError

_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})
"""Errors of writes that the user, and not the program, can mend."""
_NEGATIVE = re.compile(r"-\d+(\.\d+)?")


class VerbGroup(TyperGroup):
    """The group of all verbs.

    It prints an error of Headway as a message: what went wrong, and what to do next.
    """

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the verbs, in the order of the help."""
        return [name for verbs in PANELS.values() for name in verbs]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return the command of a verb or an alias, or None for any other word."""
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in self.commands:
            for panel, verbs in PANELS.items():
                if name in verbs:
                    self.commands[name] = _import_command(name, verbs[name].module, panel)
        return self.commands.get(name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb that the arguments name, its command and its arguments."""
        word, *rest = args
        if word in BARE_ALIASES and all(each.startswith("-") for each in rest):
            args = [BARE_ALIASES[word], *rest]
        elif self.get_command(ctx, word) is None and not ctx.resilient_parsing and word.isprintable():
            near = NEAREST.get(word)
            found = [near] if near else get_close_matches(word, [*self.list_commands(ctx), *ALIASES])
            hint = f" Did you mean {', '.join(repr(each) for each in found)}?" if found else ""
            ctx.fail(f"No such command {word!r}.{hint}")
        if not ctx.resilient_parsing:
            _refuse_misread(ctx, self.get_command(ctx, args[0]), args)
        return self._click_resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help from the table of verbs."""
        self._listing().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the verbs and options that begin with `incomplete`."""
        listing = self._listing()
        return listing.shell_complete(typer.Context(listing, info_name=ctx.info_name), incomplete)

    def _listing(self) -> TyperGroup:
        """Return this group with a stub command for each verb: its name, summary and panel."""
        commands = [
            TyperCommand(name, help=verb.summary, rich_help_panel=panel)
            for panel, verbs in PANELS.items()
            for name, verb in verbs.items()
        ]
        return TyperGroup(
            name=self.name,
            commands=commands,
            params=self.params,
            help=self.help,
            epilog=self.epilog,
            context_settings=self.context_settings,
            rich_markup_mode=self.rich_markup_mode,
        )

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. Print an error of Headway as a message, and exit with 1."""
        try:
            found = super().invoke(ctx)
            sys.stdout.flush()  # else Python reports a full disk while it ends, as an exception that it ignores
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            where = f" {error.filename}" if error.filename else ": the output is incomplete"
            typer.echo(f"Cannot write{where}: {error.strerror}. Make room, or write elsewhere.", err=True)
            _drop_output()
            raise typer.Exit(1) from None
        except HeadwayError as error:
            from rich.text import Text  # noqa: PLC0415  # only after a failure

            console = ctx.obj.err
            console.print(Text(error.what, style="red"), soft_wrap=True)
            if error.hint:
                console.print(Text(error.hint), soft_wrap=True)
            raise typer.Exit(1) from None
        return found


def _drop_output() -> None:
    """Send what standard output still holds nowhere, so that Python does not fail to write it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _refuse_misread(ctx: Any, command: Any, args: list[str]) -> None:
    """Refuse arguments that the parser would call unknown options: negative numbers, and options of the command
    that `headway exec` is to run.
    """
    verb, *rest = args
    own = rest[: rest.index("--")] if "--" in rest else rest
    for before, word in pairwise(["", *own]):
        if _NEGATIVE.fullmatch(word) and not before.startswith("-"):
            ctx.fail(
                f"{word} is negative, which no argument of `headway {verb}` may be. See: headway {verb} -h"
            )
    if verb == "exec" and own is rest:
        known = {"-h", "--help", *(name for one in command.params for name in one.opts)}
        for word in own:
            if word.startswith("-") and word[:2] not in known and word.partition("=")[0] not in known:
                ctx.fail(
                    f"{word} is no option of `headway exec`. Put -- before the command: "
                    "headway exec JOB -- COMMAND"
                )


def _import_command(name: str, module: str, panel: str) -> Any:
    """Import a verb, or a group of verbs, and return its command."""
    with _without_garbage_collection():
        found = getattr(import_module(f"headway.cli.verbs.{module}"), name.replace("-", "_"))
    single = typer.Typer(add_completion=False)
    if isinstance(found, typer.Typer):
        single.add_typer(found, name=name, rich_help_panel=panel)
    else:
        settings = AGENT_SETTINGS if name == "agent" else None
        single.command(name, rich_help_panel=panel, context_settings=settings)(found)
        single.callback()(lambda: None)
    command = typer.main.get_group(single).commands[name]
    _unwrap_help(command)
    read_plainly(command)
    return command


def _unwrap_help(command: Any) -> None:
    """Make a line of each paragraph of the help: the terminal's width wraps it, not the source's."""
    if command.help:
        command.help = "\n\n".join(" ".join(part.split()) for part in cleandoc(command.help).split("\n\n"))
    for inner in getattr(command, "commands", {}).values():
        _unwrap_help(inner)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during an import, which creates many objects that all stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
