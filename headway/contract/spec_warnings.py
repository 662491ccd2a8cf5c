"""Warnings about a job's command and environment: they are valid, and probably not what the user meant."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from headway.contract.launchers import launcher_warning
from headway.contract.spec import JobSpec
from headway.contract.spec_env import REFERENCES, env_warnings

ODD_SPACE = re.compile("[\u00a0\u1680\u2000-\u200d\u202f\u205f\u2060\u3000\ufeff]")
"""Characters that look like a space or like nothing, and that neither YAML nor a shell takes for a space."""
_ODD_QUOTE = re.compile("[\u2018-\u201f\u00ab\u00bb]")
_ODD_DASH = re.compile("[\u2010-\u2015\u2212]")
_COMMENTS = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_IN_BACKGROUND = re.compile(r"(?<![&<>|])&(?:[\s;)}]|disown\b)*\Z")
_PLAIN = ((ODD_SPACE, "a plain space"), (_ODD_QUOTE, "a plain quote"), (_ODD_DASH, "a plain -"))


def warnings_of(spec: JobSpec) -> list[str]:
    """Return warnings that the user should read before the job starts."""
    launcher = launcher_warning(spec)
    return [
        *([] if launcher is None else [launcher]),
        *run_warnings(spec.run),
        *env_warnings(spec.env),
        *_folder_warnings(spec),
    ]


def _folder_warnings(spec: JobSpec) -> list[str]:
    """Return warnings about names of folders that hold what only a shell would expand."""
    found = []
    remedies = {
        "output.dir": "the folder has this name in the working folder; give a path inside of the working folder, or leave dir out "
        "and write to $HEADWAY_OUTPUT_DIR",
        "workdir": "the folder has this name beside the job file; write its whole path, or one relative to the job file",
    }
    for field, folder in (("output.dir", spec.output.dir), ("workdir", spec.workdir)):
        match = unexpanded(folder or "")
        if match:
            found.append(f"{field} holds {match!r}: it is not expanded, so {remedies[field]}")
    return found


def unexpanded(text: str) -> str:
    """Return the first part of a text that only a shell or a template would expand; empty if there is none."""
    return next((found[0] for pattern in REFERENCES if (found := pattern.search(text))), "")


def run_warnings(run: str) -> list[str]:
    """Return warnings about a command, from what stands outside of quotes in it."""
    bare = _without_quoted(run.strip())
    found = []
    if "\n" not in run.strip() and (comment := re.search(r"\s#", bare)):
        ignored = run.strip()[comment.start() + 1 :]
        found.append(
            f"run: the shell takes {shortened(ignored)!r} for a comment; put quotes around it if it belongs to the command"
        )
    if _IN_BACKGROUND.search(_COMMENTS.sub("", bare)):
        found.append(
            "run ends with &: the shell ends at once, and the job with it, whatever runs in the background; leave the & out, or end "
            "run with wait"
        )
    for pattern, plain in _PLAIN:
        found += [
            f"run holds {character_name(character)}, which a shell takes for a letter; replace it by {plain}"
            for character in dict.fromkeys(pattern.findall(bare))
        ]
    return found


def character_name(character: str) -> str:
    """Return a character's name for users, such as `a no-break space (U+00A0)`."""
    name = unicodedata.name(character, "character").lower()
    article = "an" if name[0] in "aeiou" else "a"
    return f"{article} {name} (U+{ord(character):04X})"


def shortened(text: str, most: int = 60) -> str:
    """Return the text, cut behind `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _without_quoted(text: str) -> str:
    """Return a command of the same length in which `x` stands for every quoted or escaped character."""
    return "".join(_masked(text))


def _masked(text: str) -> Iterator[str]:
    quote, escaped = "", False
    for character in text:
        if escaped:
            escaped = False
            yield "x"
        elif character == "\\" and quote != "'":
            escaped = True
            yield "x"
        elif quote:
            quote = "" if character == quote else quote
            yield "x"
        elif character in "'\"":
            quote = character
            yield "x"
        else:
            yield character
