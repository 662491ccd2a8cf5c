"""Hide the values of a job's secrets, and tokens of Headway, in what leaves the host: output, messages, stacks.

What is hidden is replaced by as many asterisks as it has bytes, so that offsets in the output stay what they are.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from headway.contract.redaction import TOKEN

SHORTEST_BYTES = 4
"""A shorter value cannot be told from ordinary output."""
_SHORTEST_PART = 8
"""Lines of a value, and other ways to write it, are looked for from this length on."""
_TOKEN_BYTES = 160
_TOKEN = re.compile(TOKEN.pattern.encode())
_TOKEN_BEGUN = re.compile(rb"h(?:w(?:[a-z]{0,2}(?:_[A-Za-z0-9_-]{0,150})?)?)?\Z")
_ANY = re.compile(rb"[^\r\n]+")


class Redactor:
    """Knows what to hide. Safe to share between threads."""

    def __init__(self, values: Collection[str] = ()) -> None:
        forms = {form for value in values for form in _forms(value)}
        self._forms = sorted(forms, key=len, reverse=True)
        self.reach = max([_TOKEN_BYTES, *map(len, self._forms)]) - 1
        """How many bytes before and behind a piece must be known to hide what lies across its ends."""

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Begin and end of everything to hide; they may overlap."""
        for form in self._forms:
            begin = data.find(form)
            while begin >= 0:
                yield begin, begin + len(form)
                begin = data.find(form, begin + 1)
        if b"hw" in data:
            yield from (match.span() for match in _TOKEN.finditer(data))

    def begun(self, data: bytes) -> int:
        """Where something begins at the end of `data` that more bytes may show to be a secret; its length if nothing does."""
        match = _TOKEN_BEGUN.search(data, max(0, len(data) - _TOKEN_BYTES))
        first = match.start() if match is not None else len(data)
        for form in self._forms:
            begin = data.find(form[:1], max(0, len(data) - len(form) + 1))
            while 0 <= begin < first:
                if form.startswith(data[begin:]):
                    first = begin
                    break
                begin = data.find(form[:1], begin + 1)
        return first

    def mask(self, data: bytes) -> bytes:
        """The same number of bytes, without secrets."""
        return masked(data, self.spans(data))

    def text(self, text: str) -> str:
        """The text, without secrets."""
        return self.mask(text.encode(errors="surrogatepass")).decode(errors="replace")

    def fields(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """What a rank said, without secrets. What kind of message it is stays."""
        return {key: one if key == "type" else self._value(one) for key, one in message.items()}

    def _value(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self.text(str(key)): self._value(one) for key, one in value.items()}
            case list() | tuple():
                return [self._value(one) for one in value]
        return value


class HideAll(Redactor):
    """For output of which nobody knows any more what in it is secret: only the lines' lengths are left."""

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        """All but line ends."""
        yield from (match.span() for match in _ANY.finditer(data))

    def fields(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Messages are of known kinds with numbers in them, and are left as they are, but for names that a script gave."""
        return {**Redactor().fields(message), **({"values": {}} if "values" in message else {})}


def masked(data: bytes, spans: Iterator[tuple[int, int]]) -> bytes:
    """`data` with an asterisk for each byte within one of the spans."""
    hidden: bytearray | None = None
    for begin, end in spans:
        hidden = bytearray(data) if hidden is None else hidden
        hidden[begin:end] = b"*" * (end - begin)
    return data if hidden is None else bytes(hidden)


def _forms(value: str) -> Iterator[bytes]:
    """The value as programs print it: as it is, line by line, and as JSON, a URL and base64 write it."""
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
