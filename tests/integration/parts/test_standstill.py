"""The watch of a main loop over real threads, processor time and signals."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

from headway.contract.standstills import Standstill
from headway.standstill import LIMIT_S, LoopWatch
from tests.waiting import until

PATIENCE_S = 30.0
BACKTRACKING = (r"(a+)+$", "a" * 24 + "b")
"""A match that holds the interpreter's lock for half a second or more."""


async def heard_while(act: object) -> list[Standstill]:
    """Return what a watch reports of the running loop while `act` is called in it."""
    assert callable(act)
    heard: list[Standstill] = []
    watch = LoopWatch("test", asyncio.get_running_loop().call_soon_threadsafe, heard.append)
    watch.start()
    try:
        await asyncio.sleep(0.2)  # the watch probes the idle loop meanwhile
        assert heard == []
        result = act()
        if asyncio.iscoroutine(result):
            await result
        await asyncio.sleep(0.3)  # the probe after it is answered
    finally:
        watch.stop()
    assert watch.take() == heard
    return heard


async def test_blocking_call_is_reported_with_its_stack() -> None:
    (one,) = await heard_while(lambda: threading.Event().wait(0.5))
    assert one.stood_s > 0.4
    assert (
        LIMIT_S < one.own_s <= one.stood_s
    )  # without the time for which this host was too busy for the watcher
    assert "threading.py" in one.stack[-1]
    assert any("test_standstill.py" in frame for frame in one.stack)


async def test_native_call_that_holds_the_interpreters_lock_is_reported() -> None:
    heard = await heard_while(lambda: re.match(*BACKTRACKING))
    assert heard
    assert max(one.own_s for one in heard) > 0.1
    assert any("test_standstill.py" in frame for frame in heard[0].stack)


async def test_native_call_in_another_thread_that_holds_the_lock_is_reported() -> None:
    heard = await heard_while(lambda: asyncio.to_thread(re.match, *BACKTRACKING))
    assert heard
    assert any(frame.startswith("another thread: ") for one in heard for frame in one.stack)


async def test_native_call_that_begins_while_the_watcher_posts_is_reported_with_its_stack() -> None:
    loop, begun = asyncio.get_running_loop(), threading.Event()
    heard: list[Standstill] = []

    def match() -> None:
        begun.set()
        re.match(*BACKTRACKING)

    def post(call: Callable[[], None]) -> None:
        """Return once the native call has given the lock back, before the loop executes `call`."""
        if begun.is_set():
            loop.call_soon_threadsafe(call)
            return
        loop.call_soon_threadsafe(match)
        loop.call_soon_threadsafe(call)
        assert begun.wait(PATIENCE_S)

    watch = LoopWatch("test", post, heard.append)
    watch.start()
    try:
        # A busy loop is probed at every look.
        await until(lambda: begun.is_set() or sum(range(2_000_000)) < 0)
        await until(lambda: bool(heard))
    finally:
        watch.stop()
    assert any("test_standstill.py" in frame and frame.endswith(" match") for frame in heard[0].stack)


_STOPPED = """
import asyncio, sys
from headway.standstill import LoopWatch

async def main():
    watch = LoopWatch("test", asyncio.get_running_loop().call_soon_threadsafe, lambda one: print("heard", one, flush=True))
    watch.start()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    await reader.readline()
    await asyncio.sleep(0.3)
    print("end", flush=True)

asyncio.run(main())
"""


def test_stopped_process_is_not_blamed() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(4):
            os.kill(process.pid, signal.SIGSTOP)
            threading.Event().wait(0.5)  # the time for which it is stopped
            os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "end\n"


async def test_watch_of_a_closed_loop_ends() -> None:
    loop = asyncio.new_event_loop()
    watch = LoopWatch("test", loop.call_soon_threadsafe, lambda _: None)
    before = set(threading.enumerate())
    watch.start()
    (thread,) = set(threading.enumerate()) - before
    loop.close()
    await until(lambda: not thread.is_alive())
