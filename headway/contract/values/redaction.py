"""Detection and removal of credentials in text. Standard library only."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from urllib.parse import quote

TOKEN = re.compile(r"hw[a-z]{0,2}_[A-Za-z0-9_-]{20,}")
"""Pattern of the tokens of Headway, of every kind."""
HIDDEN = "[hidden]"
SHORTEST_BYTES = 4
"""Minimum length of a hidden value; a shorter one cannot be distinguished from ordinary output."""
_SHORTEST_PART = 8
"""Minimum length at which the single lines and the encodings of a value are hidden as well."""
_NAMED = r"[\w-]*(?:password|passwd|passphrase|secret|token|credential|api[_-]?key|access[_-]?key)[\w-]*"
_OPTION = re.compile(rf"-{{1,2}}{_NAMED}", re.IGNORECASE)
_ASSIGNED = re.compile(rf"(?<![\w-])({_NAMED}=).*", re.IGNORECASE | re.DOTALL)
_WITHIN = re.compile(
    rf"(?<![\w-])(-{{1,2}}{_NAMED}[= ]\s*|{_NAMED}=)(\"[^\"]*\"|'[^']*'|[^\s'\"]+)", re.IGNORECASE
)
"""Value of an option or variable inside an argument, such as the text of `sh -c`."""
_LONGEST_ARGUMENT = 1_000
"""Characters of an argument, since the patterns take time by its square."""
_IN_URL = re.compile(r"(?<=://)([^/\s:@'\"]*):[^/\s@'\"]+@")
"""User name and password in front of a host."""


def without_tokens(text: str) -> str:
    """Return the text with every token replaced by `[hidden]`."""
    return TOKEN.sub(HIDDEN, text) if "hw" in text else text


def forms_of(value: str) -> Iterator[bytes]:
    """Yield a secret value as programs print it: unchanged, line by line, and encoded as JSON, URL and base64."""
    raw = value.encode(errors="surrogatepass")
    if len(raw) >= SHORTEST_BYTES:
        yield raw
    if len(raw) < _SHORTEST_PART:
        return
    yield from (line for line in map(bytes.strip, raw.splitlines()) if len(line) >= _SHORTEST_PART)
    yield json.dumps(value)[1:-1].encode()
    yield quote(value, safe="", errors="replace").encode()
    coded = base64.b64encode(raw)
    yield coded.rstrip(b"=")[:-1] if coded.endswith(b"=") else coded


def without_values(text: str, values: Collection[str]) -> str:
    """Return the text with `[hidden]` in place of each of the secret values, in the forms of `forms_of`."""
    data = text.encode(errors="surrogatepass")
    for form in sorted({form for value in values for form in forms_of(value)}, key=len, reverse=True):
        data = data.replace(form, HIDDEN.encode())
    return data.decode(errors="replace")


def command_without_credentials(argv: Sequence[str], values: Collection[str] = ()) -> str:
    """Return the command as one line for a shell, with `[hidden]` in place of what is recognised as a credential.

    These are the secret `values`, tokens, passwords of URLs, and values of options and variables that are named like a
    credential (`--password X`, `API_KEY=X`). A credential without such a name that is none of the values stays. Of each
    argument only the first 1,000 characters are kept.
    """
    shown, hidden = [], False
    for argument in (without_values(one, values)[:_LONGEST_ARGUMENT] for one in argv):
        if hidden:
            shown.append(HIDDEN)
        elif (assigned := _ASSIGNED.match(argument)) is not None:
            shown.append(assigned[1] + HIDDEN)
        else:
            shown.append(_WITHIN.sub(rf"\1{HIDDEN}", without_credentials(argument)))
        hidden = _OPTION.fullmatch(argument) is not None
    return shlex.join(shown)


def without_credentials(text: str) -> str:
    """Return the text without tokens and without the passwords of URLs."""
    return _IN_URL.sub(rf"\1:{HIDDEN}@", without_tokens(text)) if "://" in text else without_tokens(text)
