"""Parts of the launcher that need no launcher."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.runtime import Lingers
from worker_agent.launcher import processes, program
from worker_agent.launcher.preload import Preloaded, recorded_reads, shadowed
from worker_agent.launcher.protocol import (
    Changed,
    Decoder,
    Hello,
    LaunchPlan,
    Lease,
    Start,
    Started,
    Unknown,
    Welcome,
    encode,
    socket_address,
)
from worker_agent.link.messages import read_messages

MESSAGES = [
    Hello(),
    Start("job/1"),
    Lease(12.5),
    Welcome("v", True, ("job/1",)),
    Started("job/1", "zygote", "a\nb", retryable=True),
    Changed("jöb/1"),
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=6), st.integers(1, 50))
def test_messages_survive_any_cutting(messages: list[Hello], step: int) -> None:
    data = b"".join(map(encode, messages))
    decoder = Decoder()
    received = [m for start in range(0, len(data), step) for m in decoder.feed(data[start : start + step])]
    assert received == messages


@pytest.mark.parametrize("line", [b'{"type": 3}\n', b"[]\n", b'{"type": "start", "tempo": 3}\n', b"x\n"])
def test_another_language_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Decoder().feed(line)


def test_what_a_newer_side_says_is_left_out() -> None:
    newer = b'{"type": "dance"}\n{"type": "start", "run": "j/1", "tempo": 3}\n'
    assert Decoder().feed(newer) == [Unknown("dance"), Start("j/1")]


def test_a_plan_of_a_newer_agent_is_read() -> None:
    plan = LaunchPlan(
        argv=("x",), how="spawn", cwd="/", threads=1, store_host=None, store_port=1, node_count=1, ranks={}
    )
    assert LaunchPlan.from_json({**plan.to_json(), "tempo": 3}) == plan
    with pytest.raises(KeyError):
        LaunchPlan.from_json({"argv": ["x"]})


def test_a_plan_survives_its_file() -> None:
    plan = LaunchPlan(
        argv=("python", "t.py"), how="zygote", cwd="/w", threads=1, store_host=None, store_port=1,
        node_count=1, ranks={0: {"RANK": "0"}, 11: {"RANK": "11"}},
    )  # fmt: skip
    assert LaunchPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert "RANK" not in repr(plan), "environments hold secrets and stay out of logs"


def test_a_socket_in_a_deep_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server, socket_address(deep) as address:
        server.bind(address)
    assert (deep / "launcher.sock").exists()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={"HEADWAY_CONTROL": "/here", "PATH": os.defpath},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    # Its environment can be read once it runs: `Popen` returns a moment before that.
    process.stdin.write(b"up")
    assert process.stdout.read(2) == b"up"
    yield process
    process.kill()
    process.communicate()


def test_leftovers_are_found_by_group_and_by_environment(bystander: subprocess.Popen[bytes]) -> None:
    by_marker = processes.leftovers(set(), ["HEADWAY_CONTROL=/here"])
    assert [process.pid for process in by_marker] == [bystander.pid]
    assert bystander.pid in [process.pid for process in processes.leftovers({bystander.pid}, ["NO=1"])]
    assert processes.leftovers(set(), ["HEADWAY_CONTROL=/her"]) == []


def test_killing_by_start_time(bystander: subprocess.Popen[bytes]) -> None:
    process = processes.read(bystander.pid)
    assert process is not None
    later = processes.Process(process.pid, "S", process.parent, process.group, process.start_ticks + 1)
    processes.kill(later)
    assert bystander.poll() is None, "another process with the same pid is left alone"
    processes.kill(process)
    assert bystander.wait(10) == -9
    processes.kill(process)


def test_a_process_that_is_not_there() -> None:
    assert processes.read(2**22 + 1) is None


def test_modules_that_a_script_would_find_first(tmp_path: Path) -> None:
    for name in ("train.py", "model.py", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "data").mkdir()
    assert shadowed([tmp_path, tmp_path / "nowhere"]) is None
    (tmp_path / "json").mkdir()
    assert shadowed([tmp_path]) is None, "a folder without Python files is no package that wins"
    (tmp_path / "json" / "__init__.py").touch()
    assert shadowed([tmp_path]) == "json"


@pytest.mark.parametrize(
    ("body", "code", "output"),
    [
        ("print(__name__, __file__.endswith('t.py'))", 0, "__main__ True"),
        ("import sys; sys.exit(256 + 3)", 3, ""),
        ("import sys; sys.exit('words')", 1, "words"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("x = (", 1, "SyntaxError"),
        ("import sys; print('no newline', end=''); sys.stdout.write('!')", 0, "no newline!"),
        ("import sys, pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)", 0, "A"),
        ("import sys; sys.exit(2 ** 70)", 255, ""),
        ("import sys; print('said', flush=True); del sys.stdout; sys.stderr = None", 0, "said"),
        ("import sys; sys.stderr = sys.stdout = 1; sys.exit('words')", 1, ""),
        ("import builtins; print(__builtins__ is builtins)", 0, "True"),
        ("import multiprocessing as m\nif __name__ == '__main__':\n p = m.get_context('spawn').Process(target=print, args=['kid'], kwargs={'flush': True})\n p.start(); p.join(); print(p.exitcode)", 0, "0"),
    ],
)  # fmt: skip
def test_a_program_ends_as_under_the_interpreter(tmp_path: Path, body: str, code: int, output: str) -> None:
    (tmp_path / "t.py").write_text(body)
    ended = subprocess.run(
        [sys.executable, program.__file__, "t.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == code
    assert output in ended.stdout + ended.stderr
    assert "program.py" not in ended.stderr


IN_MAIN = """
import multiprocessing as m, sys
class Own:
    def __init__(self, value): self.value = value
def own(value): return Own(value)
if __name__ == "__main__":
    with m.get_context("spawn").Pool(1) as pool:
        print(sys.argv[1:], [type(one) is Own and one.value for one in pool.map(own, [1, 2])])
"""


@pytest.mark.parametrize("named", [["t.py"], ["-m", "t"], ["-m", "folder.t"]])
def test_spawned_children_send_back_objects_of_classes_in_main(tmp_path: Path, named: list[str]) -> None:
    (tmp_path / "folder").mkdir()
    for file in ("t.py", "folder/t.py"):
        (tmp_path / file).write_text(IN_MAIN, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, program.__file__, *named, "a b"], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (ended.stdout, ended.returncode) == ("['a b'] [1, 2]\n", 0), ended.stderr


def test_a_folder_and_a_zip_archive_run_as_under_the_interpreter(tmp_path: Path) -> None:
    body = "import sys, beside; print(sys.argv, __name__, beside.__name__)"
    (tmp_path / "app").mkdir()
    for name, text in {"__main__.py": body, "beside.py": ""}.items():
        (tmp_path / "app" / name).write_text(text, encoding="utf-8")
    shutil.make_archive(str(tmp_path / "app"), "zip", tmp_path / "app")
    (tmp_path / "none").mkdir()
    for name, code, output in [
        ("app", 0, "['app', 'x'] __main__ beside\n"),
        ("app.zip", 0, "['app.zip', 'x'] __main__ beside\n"),
        ("none", 1, ""),
    ]:
        command = [sys.executable, program.__file__, name, "x"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stdout) == (code, output), ended.stderr
    assert "can't find '__main__' module" in ended.stderr


def test_a_module_that_is_not_there_is_reported_as_by_the_interpreter(tmp_path: Path) -> None:
    command = [sys.executable, program.__file__, "-m", "nosuch"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (1, f"{sys.executable}: No module named nosuch\n")


def test_a_file_that_a_program_leaves_open_is_complete_as_under_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(
        "log = open('log.txt', 'w'); log.write('lines'); raw = open('raw', 'wb'); raw.write(b'1')"
    )
    subprocess.run([sys.executable, program.__file__, "t.py"], cwd=tmp_path, timeout=60, check=True)
    assert ((tmp_path / "log.txt").read_text(), (tmp_path / "raw").read_bytes()) == ("lines", b"1")


LINGERS = """
import multiprocessing as m, sys, threading, time
kind, code = sys.argv[1:]
if kind == "thread":
    threading.Thread(target=time.sleep, args=[1e5], name="uploader").start()
elif kind == "process":
    m.get_context("fork").Process(target=time.sleep, args=[1e5], name="uploader").start()
else:
    import atexit
    atexit.register(time.sleep, 1e5)
print("main ends")
sys.exit(int(code))
"""


@pytest.mark.parametrize(
    ("kind", "code", "waits_for"),
    [("thread", 0, ("thread uploader",)), ("process", 3, ("process uploader",)), ("exit", 0, ())],
)
def test_program_kept_by_threads_processes_or_exit_functions_ends_at_its_bound(
    tmp_path: Path, kind: str, code: int, waits_for: tuple[str, ...]
) -> None:
    (tmp_path / "t.py").write_text(LINGERS)
    own = {"HEADWAY_EXIT_WITHIN_S": "0.1", "HEADWAY_CONTROL": str(tmp_path), "HEADWAY_MEMBER": "7.2"}
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(
            [sys.executable, program.__file__, "t.py", kind, str(code)],
            cwd=tmp_path, env=os.environ | own, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        assert child.wait(60) == code
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # the process that it left
    (line,) = read_messages(tmp_path / "rank-2.jsonl", 0, rank=2, generation=7)
    assert isinstance(line.message, Lingers), line.problem
    assert (line.message.waits_for, line.message.exit_code, line.message.over) == (waits_for, code, True)
    assert line.message.within_s == 0.1
    assert "exit_within" in (tmp_path / "log").read_text()


PREPARES = """
import os, sys
from worker_agent.launcher.program import prepare_output
os.environ["PYTHONUNBUFFERED"] = "1"
prepare_output()
print(chr(0xdc80), chr(233), end=" ")
print(chr(0xd800), file=sys.stderr, end="")
print("last", end=sys.stdout.mode)
os._exit(0)
"""


def test_prepared_output_is_written_at_once_and_keeps_the_errors_of_each_stream() -> None:
    env = {"LC_ALL": "C", "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", PREPARES], capture_output=True, env=env, check=True)
    assert ended.stdout == b"\x80 \xc3\xa9 lastw"
    assert ended.stderr == b"\\ud800"


def test_preload_knows_variables_that_imports_read() -> None:
    with recorded_reads() as reads:
        os.environ.get("HEADWAY_TEST_READ")
    os.environ.get("HEADWAY_TEST_LATER")
    preloaded = Preloaded(True, "", frozenset({*reads, "TMPDIR"}))
    assert preloaded.has_read(["HEADWAY_TEST_LATER", "HEADWAY_TEST_READ"]) == "HEADWAY_TEST_READ"
    assert preloaded.has_read(["TMPDIR", "HEADWAY_TEST_LATER"]) is None


@pytest.mark.parametrize(
    ("job", "rank", "name"),
    [
        ("digits", 0, "hw:digits:0"),
        ("gpt-char-large", 7, "hw:gpt-char-l:7"),
        ("gpt-char-large", 1023, "hw:gpt-cha:1023"),
    ],
)
def test_a_process_name_has_job_and_rank_within_the_kernels_limit(job: str, rank: int, name: str) -> None:
    assert program.process_name(job, rank) == name
    assert len(name) <= 15


def test_a_title_that_is_too_long_is_cut_to_the_room_of_the_command_line() -> None:
    """In a process of its own, because a title cannot be taken back."""
    code = (
        "from pathlib import Path; from worker_agent.launcher.processes import title_process as title\n"
        "import sys; shown = lambda: Path('/proc/self/cmdline').read_bytes(); room = len(shown())\n"
        "title('x' * 10_000); assert shown() == b'x' * (room - 1) + b'\\0', shown()\n"
        "title('y'); assert shown() == b'y'.ljust(room, b'\\0'), shown(); assert sys.orig_argv[1] == '-c'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
