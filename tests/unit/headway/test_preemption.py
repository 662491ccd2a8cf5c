"""The handler of SIGTERM, and the children that a process forks after it was set."""

from __future__ import annotations

import subprocess
import sys

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
