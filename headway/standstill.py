"""Watch of a program's main loop: a thread that notices when the loop stands still, and names the stack that holds it.

The watcher looks every `EVERY_S`. Unless the loop waits for events, it posts a call and waits for its execution. A standstill counts only as far as this
process caused it. Time in which the thread of the loop waited for a processor, or in which the watcher itself was not
scheduled (a stopped process, a suspended host), is not the fault of any code here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Final

from headway.contract.standstills import Standstill

LIMIT_S: Final = 0.1
"""Longest time in seconds for which a loop may execute nothing else."""
EVERY_S: Final = 0.08
"""Pause in seconds between two looks at the loop."""
_IDLE_S: Final = 0.02
"""Processor time in seconds between two looks below which a loop counts as idle if it waits for events."""
_STEP_S: Final = 0.02
"""Seconds between two looks at an unanswered probe. The watcher's own lateness is known to this precision."""
_UNPROBED: Final = 25
"""Looks at an idle loop of which one posts a call all the same: it notices a closed loop, and native code without a frame."""
_WAITING: Final = frozenset({selectors.__file__, asyncio.runners.__file__})
"""Files of the innermost frame of a loop that waits for events: with Python's selectors, and with uvloop."""
_FRAMES: Final = 12
"""Innermost frames of a stack that are kept. The outer ones are the same for every call of a loop."""
_KEPT: Final = 50
_NOT_SEEN: Final = "the loop went on before its stack was read"


@dataclass(frozen=True, slots=True)
class Readings:
    """Clocks at one time, all in seconds: of the loop's thread, of the other threads of its process, and of the watcher.

    `queued_s` and `watcher_queued_s` are the times for which these threads were runnable but had no processor.
    """

    at_s: float
    thread_cpu_s: float
    others_cpu_s: float
    queued_s: float
    watcher_queued_s: float


def unanswered_s(before: Readings, after: Readings, late_s: float) -> float:
    """Return the seconds between two readings, with a probe of the loop under way, that this process itself delayed the answer.

    They are the processor time of the loop's thread, and the time for which it was blocked. Blocked time in which the watcher
    was late (`late_s`, seconds) counts only if other threads of the process were computing, since they may hold the
    interpreter's lock; otherwise nobody on this host went on.
    """
    computed_s = after.thread_cpu_s - before.thread_cpu_s
    queued_s = after.queued_s - before.queued_s
    blocked_s = max(0.0, after.at_s - before.at_s - computed_s - queued_s)
    others_s = after.others_cpu_s - before.others_cpu_s
    return computed_s + max(blocked_s - late_s, min(blocked_s, others_s), 0.0)


def locked_s(before: Readings, after: Readings, rest_s: float) -> float:
    """Return the seconds for which a thread held the interpreter's lock while the watcher wanted to end its rest of `rest_s`.

    A thread that executes Python gives the lock away every few milliseconds, so this is a call of native code. If no thread
    of the process was computing, the watcher did not wait for the lock: the process was stopped.
    """
    waited_s = after.at_s - before.at_s - rest_s - (after.watcher_queued_s - before.watcher_queued_s)
    computed_s = after.thread_cpu_s - before.thread_cpu_s + after.others_cpu_s - before.others_cpu_s
    return max(0.0, min(waited_s, computed_s))


class LoopWatch:
    """Watch of one loop.

    Args:
        process: the name of the process, for the reports.
        post: queues a call for the loop; safe in any thread. It raises RuntimeError once the loop is closed.
        heard: receives each standstill in the watcher's thread.
        limit_s: the longest standstill in seconds that is not reported.
    """

    def __init__(
        self,
        process: str,
        post: Callable[[Callable[[], None]], object],
        heard: Callable[[Standstill], None],
        limit_s: float = LIMIT_S,
    ) -> None:
        self._process = process
        self._post = post
        self._heard = heard
        self._limit_s = limit_s
        self._stopping = threading.Event()
        self._untaken: deque[Standstill] = deque(maxlen=_KEPT)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch the loop of the calling thread."""
        watched = threading.current_thread()
        self._thread = threading.Thread(
            target=self._run, args=[watched], name="watch of the main loop", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the watch. A period that lasts now is not reported."""
        self._stopping.set()

    def take(self) -> list[Standstill]:
        """Return the standstills since the last call, the oldest first; of many, the last fifty."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._untaken.popleft())
        return taken

    def _run(self, watched: threading.Thread) -> None:
        clocks = _Clocks(watched, self._limit_s)
        try:
            before = clocks.read()
            unprobed = 0
            while not self._stopping.wait(EVERY_S):
                clocks.look(before.at_s + EVERY_S)
                after = clocks.read()
                own_s = locked_s(before, after, EVERY_S)
                if own_s > self._limit_s:
                    self._found(after.at_s - before.at_s, own_s, clocks.seen)
                is_idle = after.thread_cpu_s - before.thread_cpu_s < _IDLE_S and clocks.waits_for_events()
                unprobed = (unprobed + 1) % _UNPROBED if is_idle else 0
                before = after if unprobed else self._probe(clocks, after)
        except RuntimeError as error:
            if not self._stopping.is_set() and "closed" not in str(error):
                raise
        finally:
            clocks.close()

    def _probe(self, clocks: _Clocks, before: Readings) -> Readings:
        """Wait until the loop executes a call, and return the readings after it."""
        answered, answered_s = threading.Event(), [0.0]

        def answer() -> None:
            answered_s[0] = time.monotonic()
            answered.set()

        late_s = 0.0
        self._post(answer)
        while not answered.is_set() and not self._stopping.is_set():
            clocks.look(before.at_s)
            asked_s = time.monotonic()
            answered.wait(_STEP_S)
            now_s = time.monotonic()
            late_s += max(0.0, now_s - asked_s - _STEP_S)
        after = clocks.read()
        stood_s = answered_s[0] - before.at_s
        if stood_s > self._limit_s:
            own_s = min(stood_s, unanswered_s(before, after, late_s))
            if own_s > self._limit_s:
                self._found(stood_s, own_s, clocks.seen)
        return after

    def _found(self, stood_s: float, own_s: float, stack: tuple[str, ...]) -> None:
        found = Standstill(
            process=self._process,
            at_s=time.time(),
            stood_s=round(stood_s, 3),
            own_s=round(own_s, 3),
            stack=stack or (_NOT_SEEN,),
        )
        self._untaken.append(found)
        self._heard(found)


class _Clocks:
    """Clocks and stack of a thread, read by its watcher.

    Whatever the watcher calls that gives the interpreter's lock away, such as a read of a file, may return only after native
    code that holds it. The thread then executes no more until the watcher gives the lock away again, so the watcher looks at
    the stack after each of these calls.
    """

    def __init__(self, watched: threading.Thread, limit_s: float) -> None:
        self.seen: tuple[str, ...] = ()
        """Stack that was looked at between the last two readings; empty without one."""
        self._looked: tuple[str, ...] = ()
        self._limit_s = limit_s
        assert watched.ident is not None, "the thread runs"
        self._ident = watched.ident
        self._cpu_clock = time.pthread_getcpuclockid(watched.ident)
        self._watched, self._own = _schedule(watched), _schedule(threading.current_thread())

    def read(self) -> Readings:
        """Return the present readings of the clocks and run queues of both threads."""
        thread_s = time.clock_gettime(self._cpu_clock)
        others_s = time.process_time() - thread_s - time.thread_time()
        at_s = time.monotonic()
        self.seen, self._looked = self._looked, ()
        queued_s = _queued_s(self._watched)
        self.look(at_s)
        own_queued_s = _queued_s(self._own)
        self.look(at_s)
        return Readings(at_s, thread_s, others_s, queued_s, own_queued_s)

    def look(self, since_s: float) -> None:
        """Look at the stack if it is the first time since the last reading, and longer than the limit after `since_s`."""
        if not self._looked and time.monotonic() - since_s >= self._limit_s:
            self._looked = self.stack()

    def waits_for_events(self) -> bool:
        """Return True if the thread executes no Python besides its loop, which then executes a call at once.

        An idle loop is therefore not woken. Native code that uvloop calls without a frame of Python looks alike.
        """
        frame = sys._current_frames().get(self._ident)  # noqa: SLF001  # documented, in spite of its name
        return frame is not None and frame.f_code.co_filename in _WAITING

    def stack(self) -> tuple[str, ...]:
        """Return the innermost frames of the thread, after the innermost frame of each other thread."""
        frames = sys._current_frames()  # noqa: SLF001  # documented, in spite of its name
        watched = frames.pop(self._ident, None)
        frames.pop(threading.get_ident(), None)
        others = tuple(f"another thread: {_frame(frame, 1)[0]}" for frame in frames.values())
        return others + (() if watched is None else _frame(watched, _FRAMES))

    def close(self) -> None:
        """Close the files from which the times on the run queue are read."""
        for schedule in (self._watched, self._own):
            if schedule is not None:
                os.close(schedule)


def _frame(frame: FrameType, limit: int) -> tuple[str, ...]:
    found = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=limit, lookup_lines=False)
    return tuple(f"{one.filename}:{one.lineno} {one.name}" for one in found)[::-1]


def _schedule(thread: threading.Thread) -> int | None:
    """Open the kernel's scheduling figures of a thread; None where the kernel has none, as outside of Linux."""
    try:
        return os.open(f"/proc/self/task/{thread.native_id}/schedstat", os.O_RDONLY)
    except OSError:
        return None


def _queued_s(schedule: int | None) -> float:
    """Return the run delay, the second number of `/proc/<pid>/schedstat` (nanoseconds), or 0 if the kernel has none."""
    if schedule is None:
        return 0.0
    fields = os.pread(schedule, 128, 0).split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0
