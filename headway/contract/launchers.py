"""Launchers in a job's command, which would start a training of its own on every slot."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from headway.contract.spec import JobSpec, Launch

_PROGRAMS = frozenset({"torchrun", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun"})
_SUBCOMMANDS = {"accelerate": "launch"}
"""Programs that launch with their first argument only."""
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
_ENDS_OF_COMMANDS = re.compile(r"\n|;|&&|\|\|?|&(?!>)")
_BEFORE_A_COMMAND = frozenset(
    {"env", "exec", "nohup", "time", "then", "do", "else", "command", "uv", "poetry", "run"}
)
_SETTING = re.compile(r"[A-Za-z_]\w*=")


def launcher_warning(spec: JobSpec) -> str | None:
    """Return a warning if the command of a job's ranks is a launcher; None if it is not, or starts only once."""
    if spec.environment is Launch.PLAIN or (launcher := launcher_in(spec.run)) is None:
        return None
    return (
        f"run starts {launcher}, but Headway is the launcher and starts the command once per slot, so each slot would train "
        "on its own; give the script itself (run: python train.py), or set launch: plain with elastic.max: 1"
    )


def launcher_in(run: str) -> str | None:
    """Return the launcher of distributed training that a shell command starts; None if it starts none that is known."""
    for command in _ENDS_OF_COMMANDS.split(run.replace("\\\n", " ")):
        try:
            words = shlex.split(command, comments=True)
        except ValueError:
            words = command.split()
        if (found := _launcher_of(words)) is not None:
            return found
    return None


def _launcher_of(words: Sequence[str]) -> str | None:
    first = 0
    while first < len(words) and (words[first] in _BEFORE_A_COMMAND or _SETTING.match(words[first])):
        first += 1
    if first == len(words):
        return None
    program, arguments = PurePosixPath(words[first]).name, words[first + 1 :]
    if program in _PROGRAMS:
        return program
    if program in _SUBCOMMANDS and arguments[:1] == [_SUBCOMMANDS[program]]:
        return f"{program} {arguments[0]}"
    if program.startswith("python"):
        for option, module in itertools.pairwise(arguments):
            if option == "-m":
                return _MODULES.get(module)
            if not option.startswith("-"):
                return None
    return None
