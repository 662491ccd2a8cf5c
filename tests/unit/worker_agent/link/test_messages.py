from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from headway.contract.rank_lines import to_line
from headway.contract.runtime import Completed, FirstStep, Hello
from worker_agent.link.messages import read_messages

HELLO = Hello(rank=0, generation=3, at_s=1.0)
STEP = FirstStep(rank=0, generation=3, at_s=2.0, samples=64)
DONE = Completed(rank=0, generation=3, at_s=3.0, samples=640)


def read(path: Path, offset: int = 0) -> list[object]:
    return [message or problem for message, problem, _ in read_messages(path, offset, rank=0, generation=3)]


def test_complete_lines_are_read_and_the_rest_is_left(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    assert read(path) == []
    path.write_text(to_line(HELLO) + to_line(STEP)[:20])
    assert read(path) == [HELLO]


def test_reading_goes_on_behind_the_offset(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text(to_line(HELLO))
    [(_, _, offset)] = read_messages(path, 0, rank=0, generation=3)
    with path.open("a") as file:
        file.write(to_line(STEP))
    assert read(path, offset) == [STEP]


def test_a_bad_line_is_named_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    foreign = Hello(rank=1, generation=3, at_s=1.0)
    path.write_bytes(
        to_line(HELLO).encode() + b"\xff\xfe\nnot JSON\n[]\n" + (to_line(foreign) + to_line(DONE)).encode()
    )
    first, *problems, last = read(path)
    assert (first, last) == (HELLO, DONE)
    assert len(problems) == 4
    assert "rank 1" in str(problems[-1])


def test_in_a_live_job_a_process_speaks_as_the_rank_that_it_has_by_now(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    later, before = Hello(rank=4, generation=9, at_s=1.0), Hello(rank=0, generation=2, at_s=1.0)
    path.write_text("".join(map(to_line, [HELLO, later, before])))
    said = [message for message, _, _ in read_messages(path, 0, rank=0, generation=3, live=True)]
    assert said == [HELLO, later, None]


def test_an_endless_line_does_not_stop_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_bytes(b"x" * (1 << 20) + b"y\n" + to_line(DONE).encode())
    offset, seen = 0, []
    for _ in range(3):
        for message, problem, behind in read_messages(path, offset, rank=0, generation=3):
            offset = behind
            seen.append(message or problem)
    assert seen[-1] == DONE


@given(st.integers(1, 200), st.lists(st.sampled_from([HELLO, STEP, DONE]), max_size=8))
def test_however_a_file_grows_each_message_is_read_once(step: int, messages: list[Hello]) -> None:
    data = "".join(map(to_line, messages)).encode()
    with TemporaryDirectory() as folder:
        path, offset, seen = Path(folder) / "m", 0, []
        for end in [*range(0, len(data), step), len(data)]:
            path.write_bytes(data[:end])
            for message, _, behind in read_messages(path, offset, rank=0, generation=3):
                offset = behind
                seen.append(message)
    assert seen == messages
