"""Validation of the regular expressions that read progress.

The agent matches them with RE2, whose running time is linear in the length of the line. RE2 has neither
lookaround nor backreferences. The service refuses such a pattern at submit, because the host could not use
it.
"""

from __future__ import annotations

import re

MOST_PATTERN = 1000
STEP_GROUP = "step"
TOTAL_GROUP = "total"
EPOCH_GROUP, EPOCHS_GROUP = "epoch", "epochs"
_MOST_GROUPS = 20
_BY_NUMBER = re.compile(r"\\[1-9]")
_OTHER_GROUP = re.compile(r"\(\?(?:<|P?')\w")
"""Beginnings of named groups in the notation of other languages."""
_NOT_IN_RE2 = (
    (re.compile(r"\(\?<?[=!]"), "lookaround"),
    (re.compile(r"\(\?P="), "a reference to a group"),
    (re.compile(r"\(\?>"), "an atomic group"),
    (re.compile(r"\(\?\("), "a conditional group"),
    (re.compile(r"[*+?}]\+"), "a possessive repeat"),
)


def check_pattern(pattern: str) -> None:
    """Check that progress can be read by the pattern.

    Raises:
        ValueError: the pattern cannot be used; the message says why.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        hint = "; write a named group as (?P<step>…)" if _OTHER_GROUP.search(pattern) else ""
        raise ValueError(f"not a regular expression: {error}{hint}") from error
    escapes = re.findall(r"\\.", pattern)
    bare = re.sub(r"\[[^\]]*\]", "x", re.sub(r"\\.", "x", pattern))
    found = [what for one, what in _NOT_IN_RE2 if one.search(bare)]
    found += ["a reference to a group" for one in escapes if _BY_NUMBER.match(one)]
    if found:
        raise ValueError(f"{found[0]} cannot be used: lines are matched by RE2, in bounded time")
    if STEP_GROUP not in compiled.groupindex:
        raise ValueError(r"it needs the named group step, as in 'iter (?P<step>\d+)'")
    if len(compiled.groupindex) > _MOST_GROUPS:
        raise ValueError(f"it has {len(compiled.groupindex)} named groups; {_MOST_GROUPS} are allowed")
