"""The handler of SIGTERM, and the children that a process forks after it was set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headway.preemption import StopRequest

_SCRIPT = """
import multiprocessing, signal, time
from headway.preemption import StopRequest, preempted

{listen}
fork = multiprocessing.get_context("fork")
with fork.Pool(2) as pool:
    pool.map(abs, range(8))
child = fork.Process(target=time.sleep, args=(600,))
child.start()
child.terminate()
child.join()
assert not preempted()
print(child.exitcode, signal.pthread_sigmask(signal.SIG_BLOCK, []))
signal.raise_signal(signal.SIGTERM)
print(preempted())
"""


def _output(listen: str) -> list[str]:
    script = [sys.executable, "-c", _SCRIPT.format(listen=listen)]
    return subprocess.run(script, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


def test_forked_child_after_listen_ends_at_sigterm() -> None:
    assert _output("StopRequest().listen()") == ["-15 set()", "True"]


def test_forked_child_after_preempted_ends_at_sigterm() -> None:
    assert _output("preempted()") == ["-15 set()", "True"]


_IN_C_CODE = """
import ctypes, os, signal, threading, time
from headway.preemption import StopRequest

request = StopRequest()
request.listen(for_threads=True)
library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)

def watch():
    os.kill(os.getpid(), signal.SIGTERM)
    while not request.poll():
        time.sleep(0.001)
    library.pthread_mutex_unlock(mutex)

library.pthread_mutex_lock(mutex)
threading.Thread(target=watch).start()
library.pthread_mutex_lock(mutex)
print(request.received)
"""


def _printed(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_poll_while_the_main_thread_is_in_c_code_notices_sigterm() -> None:
    assert _printed(_IN_C_CODE) == "True\n"


_CHILD_WITH_A_HANDLER = """
import os, signal
from headway.preemption import StopRequest

request = StopRequest()
request.listen(for_threads=True)
child = os.fork()
if not child:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
    signal.raise_signal(signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), request.poll())
"""


def test_poll_after_a_signal_to_a_forked_child_notices_nothing() -> None:
    assert _printed(_CHILD_WITH_A_HANDLER) == "3 False\n"


_OWN_HANDLER = """
import signal
from headway.preemption import StopRequest

request = StopRequest()
request.listen(for_threads=True)
signal.signal(signal.SIGTERM, lambda *_: None)
signal.raise_signal(signal.SIGTERM)
print(request.poll())
"""


def test_poll_under_a_handler_of_the_script_notices_nothing() -> None:
    assert _printed(_OWN_HANDLER) == "False\n"


def test_signal_without_an_announcement_counts_after_five_seconds(tmp_path: Path) -> None:
    now = [100.0]
    request = StopRequest(tmp_path / "stop.json", lambda: now[0])
    request.arrive()
    counted = []
    for now[0] in (100.0, 104.9, 105.0):
        counted.append(request.received)
    assert counted == [False, False, True]


def test_signal_with_an_announcement_counts_at_once_and_the_announcement_alone_does_not(
    tmp_path: Path,
) -> None:
    request = StopRequest(tmp_path / "stop.json", lambda: 100.0)
    (tmp_path / "stop.json").touch()
    assert not request.received
    request.arrive()
    assert request.received
