"""Transfer of reports from the training loop to a tracker, by a queue and a thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.train.host.output import warn

MOST_WAITING = 10_000
"""Most reports that wait for a tracker that does not answer. Beyond it the oldest are dropped."""
AT_ONCE = 500
"""Most reports that a tracker receives in one call."""
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
END_WITHIN_S = 5.0
"""Seconds that the end of a process waits for a tracker: ranks must end within `checkpoint.grace_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedReport:
    """The values of one `run.report`, and the position of training.

    `step` counts optimizer steps since the job began: the script's present step, or the last one between
    epochs. `first_step` is the first step that this generation may report. If an earlier generation has
    reported that step or a later one, its state was lost, and this generation repeats the step. `at_s` is
    Unix time.
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
    """A store of reports, used by one thread."""

    def write(self, reports: Sequence[TrackedReport]) -> None:
        """Store the reports, in order.

        Raises:
            OSError: the reports cannot be stored now; the caller retries with the same ones.
        """

    def close(self, *, complete: bool) -> None:
        """End the reports of this process. `complete`: training has finished all its epochs."""


class Sender:
    """Background sender of reports to one tracker. `put` and `close` are for the training's thread.

    The sender's thread calls `open_tracker` when it has the first report. No error of `open_tracker` or of the
    tracker delays training. The sender prints the first error, and retries after 1 s, 2 s, 4 s, and so on up
    to a minute.
    """

    def __init__(self, name: str, open_tracker: Callable[[], Tracker]) -> None:
        self._name = name
        self._open_tracker = open_tracker
        self._waiting: deque[TrackedReport] = deque()
        self._dropped = 0
        self._changed = threading.Condition()
        self._ending = self._complete = False
        self._in_progress: list[TrackedReport] = []
        self._tracker: Tracker | None = None
        self._thread: threading.Thread | None = None

    def put(self, report: TrackedReport) -> None:
        """Queue a report for writing, without waiting."""
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
        """Write the waiting reports within the time limit, and print the number of the remaining ones."""
        if self._thread is None:
            return
        with self._changed:
            self._ending, self._complete = True, complete
            self._changed.notify()
        self._thread.join(within_s)
        with self._changed:
            left = len(self._waiting) + len(self._in_progress) + self._dropped
        if left:
            warn(f"{left} reports did not reach {self._name}; `headway describe` shows the newest values")

    # Work of the thread

    def _run(self) -> None:
        pause_s = FIRST_RETRY_S
        while self._take():
            try:
                if self._tracker is None:
                    self._tracker = self._open_tracker()
                self._tracker.write(self._in_progress)
            except Exception as error:  # noqa: BLE001  # errors of a tracker must not stop training
                if pause_s == FIRST_RETRY_S:
                    warn(
                        f"{self._name} does not accept reports, so they are retried later: {_one_line(error)}"
                    )
                if not self._wait(pause_s):
                    return
                pause_s = min(2 * pause_s, LAST_RETRY_S)
            else:
                pause_s = FIRST_RETRY_S
                self._in_progress = []
        self._close_tracker()

    def _take(self) -> bool:
        """Take reports to write, and wait for the first one if necessary. False: there are no more reports."""
        with self._changed:
            self._changed.wait_for(lambda: self._in_progress or self._waiting or self._ending)
            while self._waiting and len(self._in_progress) < AT_ONCE:
                self._in_progress.append(self._waiting.popleft())
            return bool(self._in_progress)

    def _wait(self, pause_s: float) -> bool:
        """Wait before the next try. False: the process ends, so there is no next try."""
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
            warn(f"{self._name} was not closed: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
