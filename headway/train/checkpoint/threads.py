"""Work on the parts of a checkpoint by several threads: checksums and storage take most of the time of a save."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

THREADS = 4
"""Threads that work on parts at once. Each that reads has a part in memory."""


def for_each(
    act: Callable[[_Item], _Result],
    items: Sequence[_Item],
    urgent: threading.Event | None = None,
    threads: int = THREADS,
) -> list[_Result]:
    """Return the results of `act` for all items, in their order.

    Until `urgent` is set, only the caller's thread works, because others would slow training down; None: it is urgent. It is
    set when the function returns.

    Raises:
        Exception: that of the first item that failed, once no thread works on an item. Others may not have begun.
    """
    work = _Work(act, items)
    if urgent is None:
        urgent = threading.Event()
        urgent.set()
    helpers: list[threading.Thread] = []
    for _ in range(min(threads, len(items)) - 1):
        helper = threading.Thread(
            target=work.help, args=(urgent,), name="headway-checkpoint-part", daemon=True
        )
        with suppress(RuntimeError):  # the interpreter is about to end, and has no further threads
            helper.start()
            helpers.append(helper)
    try:
        work.run()
    finally:
        work.stop()
        urgent.set()
        for helper in helpers:
            helper.join()
    return work.results()


class _Work(Generic[_Item, _Result]):
    def __init__(self, act: Callable[[_Item], _Result], items: Sequence[_Item]) -> None:
        self._act = act
        self._left = deque(enumerate(items))
        self._done: dict[int, _Result] = {}
        self._errors: dict[int, Exception] = {}

    def help(self, urgent: threading.Event) -> None:
        urgent.wait()
        self.run()

    def run(self) -> None:
        """Work on items until none is left, or one has failed."""
        with suppress(IndexError):
            while True:
                number, item = self._left.popleft()
                self._try(number, item)

    def _try(self, number: int, item: _Item) -> None:
        try:
            self._done[number] = self._act(item)
        except Exception as error:  # noqa: BLE001  # `results` raises it
            self._errors[number] = error
            self.stop()

    def stop(self) -> None:
        """Begin no further item; those that were begun end."""
        self._left.clear()

    def results(self) -> list[_Result]:
        if self._errors:
            raise self._errors[min(self._errors)]
        return [self._done[number] for number in sorted(self._done)]
