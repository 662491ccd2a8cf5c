"""Run a Python program as `__main__`, and end the process without finalising the interpreter.

Because of torch's threads, about one in thirty normal interpreter exits aborts after all work is done. So
this module takes the program's exit code, runs the first steps of an exit itself (threads, `atexit`, flush),
and ends the process by `os._exit`. A forked rank calls `run`. A rank with a new interpreter executes this
file. The module imports nothing of Headway, because that interpreter may not have it.
"""

import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import importlib.machinery
import io
import itertools
import json
import multiprocessing.process
import os
import pkgutil
import runpy
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn, TextIO, cast

_PR_SET_NAME = 15
_WITH_BUFFERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_OURS = frozenset({__file__, runpy.__file__, "<frozen runpy>"})
_walk_stack = traceback.walk_stack
_EXIT_WITHIN_S = 600.0
"""Time within which threads and exit functions must end, unless HEADWAY_EXIT_WITHIN_S says another one."""
_FIRST_REPORT_S = 5.0
"""Time after which a process that still waits for them reports it."""
_REPORT_EVERY_S = 30.0


def run(name: str, arguments: Sequence[str], *, is_module: bool) -> NoReturn:
    """Act as the interpreter of `python NAME ARGUMENTS`, or of `python -m NAME ARGUMENTS`. Never returns.

    `sys.path[0]` must be the caller's own entry; it is replaced.
    """
    _name_process()
    prepare_output()
    write_stacks_on_request()
    bound = ExitBound(os.environ)
    sys.argv = [name, *arguments]
    sys.path[0] = str(Path.cwd() if is_module else Path(name).resolve().parent)
    importlib.invalidate_caches()
    multiprocessing.process.ORIGINAL_DIR = str(Path.cwd())  # type: ignore[attr-defined]
    code = _run_to_exit_code(name, is_module=is_module)
    bound.start(code)
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  # waits for the program's threads
    atexit._run_exitfuncs()  # noqa: SLF001
    flush_and_exit(code)


def process_name(job: str, rank: int | str) -> str:
    """Return a rank's process name: `hw:JOB:RANK`, with as much of the job's name as the 15 characters of the kernel allow."""
    return f"hw:{job[: 11 - len(str(rank))]}:{rank}"


def _name_process() -> None:
    """Name this process after its rank, because a new interpreter has lost the name that the launcher gave it."""
    job, rank = os.environ.get("HEADWAY_JOB_NAME"), os.environ.get("RANK")
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux has it
    if job and rank and prctl is not None:
        prctl(_PR_SET_NAME, process_name(job, rank).encode(), 0, 0, 0)


def prepare_output() -> None:
    """Make the output streams write UTF-8, at once if `PYTHONUNBUFFERED` says so. Each keeps its `errors`.

    Standard error never raises for a character, as in a new interpreter.
    """
    sys.stdout = sys.__stdout__ = _output_stream(sys.stdout, sys.stdout.errors)  # type: ignore[misc, assignment]
    kept = sys.stderr.errors
    sys.stderr = sys.__stderr__ = _output_stream(sys.stderr, "backslashreplace" if kept == "strict" else kept)  # type: ignore[misc, assignment]


def _output_stream(stream: TextIO, errors: str | None) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    encoding = stream.encoding if os.environ.get("PYTHONIOENCODING") else "utf-8"
    if os.environ.get("PYTHONUNBUFFERED") and not isinstance(stream.buffer, io.RawIOBase):
        # `reconfigure(write_through=True)` would leave the text in the buffer below.
        stream.flush()
        raw = io.FileIO(stream.fileno(), "w", closefd=False)
        raw.name = stream.name
        text = io.TextIOWrapper(cast("BinaryIO", raw), encoding, errors, write_through=True)
        text.mode = "w"  # type: ignore[misc]  # as the interpreter's own has it
        return text
    stream.reconfigure(encoding=encoding, errors=errors, line_buffering=True)
    return stream


def write_stacks_on_request() -> None:
    """Make the interpreter write the stacks of all threads on SIGURG, without waiting for any of them.

    The signal and the file are those of `headway.contract.runtime`. Most programs do not use this signal. A
    program that does replaces the handler.
    """
    with contextlib.suppress(KeyError, OSError):  # the program runs without it
        rank = os.environ.get("RANK", "0")  # a process without a launcher has no RANK
        path = os.path.join(os.environ["HEADWAY_CONTROL"], f"stacks-{rank}.txt")  # noqa: PTH118
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(signal.SIGURG, file=file, all_threads=True)


class ExitBound:
    """Bound on the time for which threads and exit functions keep a process whose program has ended.

    The agent reads the reports (`headway.contract.runtime.Lingers`) from the messages of the rank. The variables are read
    before the program can change them.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        try:
            self._within_s = float(env.get("HEADWAY_EXIT_WITHIN_S", _EXIT_WITHIN_S))
        except ValueError:
            self._within_s = _EXIT_WITHIN_S
        self._control = env.get("HEADWAY_CONTROL")
        self._member = env.get("HEADWAY_MEMBER", "")
        self._process = os.getpid()

    def start(self, code: int) -> None:
        """Start a thread that ends this process with `code` once the time is over."""
        with contextlib.suppress(RuntimeError):  # without another thread, the program's own end counts
            threading.Thread(target=self._watch, args=[code], daemon=True, name="headway exit").start()

    def _watch(self, code: int) -> None:
        begun_s = time.monotonic()
        next_s = min(_FIRST_REPORT_S, self._within_s)
        while True:
            time.sleep(max(0.0, begun_s + next_s - time.monotonic()))
            waits_for = self._waits_for()
            over = next_s >= self._within_s
            with contextlib.suppress(OSError, ValueError):
                self._report(code, time.monotonic() - begun_s, waits_for, over=over)
            if over:
                break
            next_s = min(next_s + _REPORT_EVERY_S, self._within_s)
        named = ", ".join(waits_for) or "exit functions"
        with contextlib.suppress(Exception):
            sys.stderr.write(
                f"[headway] The script ended {self._within_s:g} s ago, and {named} did not: ending the process (exit_within).\n"
            )
        flush_and_exit(code)

    def _waits_for(self) -> list[str]:
        ours = (threading.main_thread(), threading.current_thread())
        threads = [one.name for one in threading.enumerate() if not one.daemon and one not in ours]
        children = [one.name for one in list(multiprocessing.process._children) if not one.daemon]  # type: ignore[attr-defined]  # noqa: SLF001
        names = [*(f"thread {name}" for name in threads), *(f"process {name}" for name in children)]
        return ["".join(filter(str.isprintable, name))[:200] for name in names[:64]]

    def _report(self, code: int, ended_s: float, waits_for: Sequence[str], *, over: bool) -> None:
        if not self._control or os.getpid() != self._process:  # a forked child is no rank
            return
        generation, _, rank = self._member.partition(".")
        message = {"type": "lingers", "rank": int(rank), "generation": int(generation), "at_s": time.time()}
        message |= {
            "ended_s": ended_s,
            "within_s": self._within_s,
            "exit_code": code,
            "waits_for": waits_for,
            "over": over,
        }
        path = Path(self._control) / f"rank-{int(rank)}.jsonl"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, (json.dumps(message) + "\n").encode())
        finally:
            os.close(file)


def flush_and_exit(code: int) -> NoReturn:
    """Flush the output and all files that the program left open, and end the process at once, whatever they raise."""
    try:
        _flush()
    finally:
        os._exit(code)


def _flush() -> None:
    open_files = [one for one in gc.get_objects() if issubclass(type(one), _WITH_BUFFERS)]
    for stream in (*open_files, getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
        with contextlib.suppress(Exception):  # the program may have put anything in the place of its output
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # output of C code


def _run_to_exit_code(name: str, *, is_module: bool) -> int:
    """Run the program, and return the exit code that the interpreter would use."""
    code = 0
    traceback.walk_stack = _above_launcher
    try:
        if is_module:
            _fresh_main()
            runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # noqa: SLF001  # as `python -m` does
        else:
            _run_file(name)
    except SystemExit as request:
        code = _exit_code(request.code)
        if code:
            sys.last_value = request
    except BaseException as error:  # noqa: BLE001  # reported as the interpreter does
        error.__traceback__ = _without_our_frames(error.__traceback__)
        sys.last_value = error  # as the interpreter does: actions at exit see that the program has failed
        sys.excepthook(type(error), error, error.__traceback__)
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
    return code


def _run_file(name: str) -> None:
    path = str(Path.cwd() / name)
    if pkgutil.get_importer(path) is not None:  # a folder or a zip archive, whose `__main__` is the program
        sys.path[0] = path
        _fresh_main()
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]  # noqa: SLF001
        return
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(
            f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n"
        )
        raise SystemExit(2) from None
    module = _fresh_main()
    module.__file__ = path
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__["__cached__"] = None
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102


def _fresh_main() -> types.ModuleType:
    """Put an empty `__main__` in the place of ours, also under the name that it has in children of `multiprocessing`.

    What a spawned child sends back names its classes `__mp_main__`.
    """
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins  # other modules have its dictionary
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    return module


def _exit_code(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF if -(2**63) <= value < 2**63 else 0xFF
    with contextlib.suppress(Exception):
        sys.stderr.write(f"{value}\n")
    return 1


def _above_launcher(f: types.FrameType | None) -> Iterator[tuple[types.FrameType, int]]:
    """Walk a stack as `traceback.walk_stack` does, which `logging` uses, up to the first frame of this module."""
    walked = _walk_stack(f)
    if f is None:  # it counts the frames of its callers
        return walked
    return itertools.takewhile(lambda one: one[0].f_code.co_filename != __file__, walked)


def _without_our_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    _module = sys.argv[1] == "-m"
    _rest = sys.argv[2:] if _module else sys.argv[1:]
    run(_rest[0], _rest[1:], is_module=_module)
