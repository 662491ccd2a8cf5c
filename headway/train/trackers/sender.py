"""From the training loop to a tracker, by a queue and a thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.train.output import complain

MOST_WAITING = 10_000
"""Reports that wait for a tracker that does not answer. Beyond it the oldest are dropped."""
AT_ONCE = 500
"""Reports that a tracker gets in one call."""
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
END_WITHIN_S = 5.0
"""What the end of a process waits for a tracker: the ranks are asked to be gone within `checkpoint.grace_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The values of one `run.report`, and where training was.

    `step` counts optimizer steps since the job began: the one that the script was at, or the last one between epochs.
    `first_step` is the first one that this generation may report: whatever was reported from there on before was lost
    with the state, and comes again. `at_s` is Unix time.
    """

    step: int
    first_step: int
    epoch: int
    samples: int
    generation: int
    world_size: int
    at_s: float
    values: dict[str, float]


class Tracker(Protocol):
    """Keeps reports. Used by one thread."""

    def write(self, reports: Sequence[Report]) -> None:
        """Keep them, in order.

        Raises:
            OSError: not now; the same ones will be given again.
        """

    def close(self, *, complete: bool) -> None:
        """There are no more from this process. `complete`: training is over, with all its epochs."""


class Sender:
    """Hands reports to one tracker, in the background. `put` and `close` are for the training's thread.

    `open_tracker` is called in the thread of the sender, with the first report. An error of it, or of the tracker, holds
    up nothing: it is said once, and tried again after a second, two, four, up to a minute.
    """

    def __init__(self, name: str, open_tracker: Callable[[], Tracker]) -> None:
        self._name = name
        self._open_tracker = open_tracker
        self._waiting: deque[Report] = deque()
        self._dropped = 0
        self._changed = threading.Condition()
        self._ending = self._complete = False
        self._under_way: list[Report] = []
        self._tracker: Tracker | None = None
        self._thread: threading.Thread | None = None

    def put(self, report: Report) -> None:
        """Have a report written. Never waits."""
        with self._changed:
            if len(self._waiting) == MOST_WAITING:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(report)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"headway-{self._name}", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, *, complete: bool, within_s: float = END_WITHIN_S) -> None:
        """Write what is waiting, as far as that goes in time. Says on stderr what could not be."""
        if self._thread is None:
            return
        with self._changed:
            self._ending, self._complete = True, complete
            self._changed.notify()
        self._thread.join(within_s)
        with self._changed:
            left = len(self._waiting) + len(self._under_way) + self._dropped
        if left:
            complain(f"{left} reports did not reach {self._name}; `headway describe` has the newest values")

    # In the thread

    def _run(self) -> None:
        pause_s = FIRST_RETRY_S
        while self._take():
            try:
                if self._tracker is None:
                    self._tracker = self._open_tracker()
                self._tracker.write(self._under_way)
            except Exception as error:  # noqa: BLE001  # whatever a tracker does, training goes on
                if pause_s == FIRST_RETRY_S:
                    complain(f"{self._name} takes no reports, and is asked again later: {_one_line(error)}")
                if not self._wait(pause_s):
                    return
                pause_s = min(2 * pause_s, LAST_RETRY_S)
            else:
                pause_s = FIRST_RETRY_S
                self._under_way = []
        self._close_tracker()

    def _take(self) -> bool:
        """Wait for reports, unless some are still to be written. False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._under_way or self._waiting or self._ending)
            while self._waiting and len(self._under_way) < AT_ONCE:
                self._under_way.append(self._waiting.popleft())
            return bool(self._under_way)

    def _wait(self, pause_s: float) -> bool:
        """Before the next try. False: the last one has failed."""
        with self._changed:
            if self._ending:
                return False
            self._changed.wait_for(lambda: self._ending, pause_s)
            return True

    def _close_tracker(self) -> None:
        if self._tracker is None:
            return
        try:
            self._tracker.close(complete=self._complete)
        except Exception as error:  # noqa: BLE001  # as above
            complain(f"{self._name} was not closed: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
