"""Redaction of the secrets of a job, and of Headway tokens, in data that leaves the host: output, messages, stacks.

A hidden value is replaced by as many asterisks as it has bytes, so that offsets in the output stay valid.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from headway.contract.values.redaction import TOKEN, forms_of

_TOKEN_BYTES = 160
_TOKEN = re.compile(TOKEN.pattern.encode())
_TOKEN_BEGUN = re.compile(rb"h(?:w(?:[a-z]{0,2}(?:_[A-Za-z0-9_-]{0,150})?)?)?\Z")
_ANY = re.compile(rb"[^\r\n]+")


class Redactor:
    """Search for the values to hide. Thread-safe."""

    def __init__(self, values: Collection[str] = ()) -> None:
        forms = {form for value in values for form in forms_of(value)}
        self._forms = sorted(forms, key=len, reverse=True)
        self.reach = max([_TOKEN_BYTES, *map(len, self._forms)]) - 1
        """Bytes before and behind a piece that must be known to hide values across its ends."""

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield begin and end of everything to hide; the spans may overlap."""
        for form in self._forms:
            begin = data.find(form)
            while begin >= 0:
                yield begin, begin + len(form)
                begin = data.find(form, begin + 1)
        if b"hw" in data:
            yield from (match.span() for match in _TOKEN.finditer(data))

    def begun(self, data: bytes) -> int:
        """Return where an incomplete secret may begin at the end of `data`, or else its length."""
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
        """Return `data` with every secret masked; the length stays the same."""
        return masked(data, self.spans(data))

    def text(self, text: str) -> str:
        """Return the text with every secret masked."""
        return self.mask(text.encode(errors="surrogatepass")).decode(errors="replace")

    def fields(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a rank's message with every secret masked; its type stays unchanged."""
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
    """Redactor for output whose secrets are unknown: it leaves only the lengths of lines."""

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield everything except line ends."""
        yield from (match.span() for match in _ANY.finditer(data))

    def fields(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message without the names and values that a script chose.

        The other fields are numbers of known message types, so only tokens are masked in them.
        """
        return {**Redactor().fields(message), **({"values": {}} if "values" in message else {})}


def masked(data: bytes, spans: Iterator[tuple[int, int]]) -> bytes:
    """Return `data` with an asterisk for each byte within one of the spans."""
    hidden: bytearray | None = None
    for begin, end in spans:
        hidden = bytearray(data) if hidden is None else hidden
        hidden[begin:end] = b"*" * (end - begin)
    return data if hidden is None else bytes(hidden)
