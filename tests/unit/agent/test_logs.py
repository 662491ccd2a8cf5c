from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_agent.folders import RunFolder
from worker_agent.logs import CHUNK_BYTES, TAIL_LINES, LoggedRun, LogShipper, cut, tail
from worker_agent.service_api import Refused, Unreachable


class Sink:
    """Keeps what is shipped; fails when told to."""

    def __init__(self) -> None:
        self.data: dict[int, bytearray] = {}
        self.calls = 0
        self.error: Exception | None = None

    def ship_log(self, job_id: str, generation: int, rank: int, offset: int, data: bytes) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error
        log = self.data.setdefault(rank, bytearray())
        assert offset <= len(log), "no holes"
        log[offset : offset + len(data)] = data


@pytest.fixture
def run(tmp_path: Path) -> LoggedRun:
    folder = RunFolder(tmp_path / "job" / "1")
    folder.path.mkdir(parents=True)
    return LoggedRun("job", 1, (0, 1), folder)


def shipper(sink: Sink, run: LoggedRun, quota_bytes: int = 1 << 20) -> LogShipper:
    made = LogShipper(sink, threading.Event(), quota_bytes)
    made.watch(run)
    return made


def test_news_of_every_rank_is_shipped_once(run: LoggedRun) -> None:
    sink = Sink()
    ship = shipper(sink, run)
    run.folder.log(0).write_bytes(b"a\n")
    run.folder.log(1).write_bytes(b"b\n")
    ship.run_once()
    ship.run_once()
    assert (sink.data, sink.calls) == ({0: b"a\n", 1: b"b\n"}, 2)
    with run.folder.log(0).open("ab") as file:
        file.write(b"more\n")
    ship.run_once()
    assert sink.data[0] == b"a\nmore\n"


def test_a_line_that_still_grows_is_held_back_and_one_that_stopped_is_not(run: LoggedRun) -> None:
    sink = Sink()
    ship = shipper(sink, run)
    run.folder.log(0).write_bytes(b"done\n 50%")
    ship.run_once()
    assert sink.data[0] == b"done\n"
    ship.run_once()
    assert sink.data[0] == b"done\n 50%"


def test_a_run_that_is_over_is_shipped_to_its_end_and_left(run: LoggedRun) -> None:
    sink = Sink()
    ship = shipper(sink, run)
    run.folder.log(0).write_bytes(b"x" * (2 * CHUNK_BYTES) + b"\nno end")
    ship.over(run.folder.name)
    ship.run_once()
    assert sink.data[0] == run.folder.log(0).read_bytes()
    assert run.folder.shipped.exists()
    calls = sink.calls
    ship.run_once()
    assert sink.calls == calls


def test_a_new_agent_goes_on_where_the_last_one_stopped(run: LoggedRun) -> None:
    sink = Sink()
    run.folder.log(0).write_bytes(b"one\n")
    shipper(sink, run).run_once()
    run.folder.log(0).write_bytes(b"one\ntwo\n")
    shipper(sink, run).run_once()
    assert (sink.data[0], sink.calls) == (b"one\ntwo\n", 2)


def test_what_could_not_be_shipped_is_shipped_later(run: LoggedRun) -> None:
    sink = Sink()
    ship = shipper(sink, run)
    run.folder.log(0).write_bytes(b"one\n")
    sink.error = Unreachable("away")
    with pytest.raises(Unreachable):
        ship.run_once()
    sink.error = None
    ship.run_once()
    assert sink.data[0] == b"one\n"


def test_what_the_service_will_never_take_does_not_block_the_rest(run: LoggedRun) -> None:
    sink = Sink()
    ship = shipper(sink, run)
    run.folder.log(0).write_bytes(b"one\n")
    sink.error = Refused(404, "the job was deleted")
    ship.over(run.folder.name)
    ship.run_once()
    assert run.folder.shipped.exists()


def test_a_flood_is_cut_off_with_a_word_and_does_not_fill_the_disk(run: LoggedRun) -> None:
    sink = Sink()
    quota = 1 << 20
    ship = shipper(sink, run, quota)
    with run.folder.log(0).open("ab") as log:
        log.write(b"0123456789abcde\n" * (3 * quota // 16))
        log.flush()
        ship.run_once()
        assert bytes(sink.data[0][:quota]) == run.folder.log(0).read_bytes()[:quota]
        assert b"more than 1 MiB" in sink.data[0][quota:]
        assert run.folder.log(0).stat().st_size == quota
        size = len(sink.data[0])
        log.write(b"the end\n")
        log.flush()
    ship.over(run.folder.name)
    ship.run_once()
    assert tail(run.folder.log(0))[-1] == "the end", "the tail of a failure is still there"
    assert bytes(sink.data[0][quota:]).startswith(b"\n[headway]")
    assert len(sink.data[0]) == size


@given(st.text(max_size=200), st.booleans())
def test_a_cut_is_at_a_line_end_or_at_the_very_end(text: str, final: bool) -> None:
    data = text.encode()
    end = cut(data, final=final)
    assert 0 <= end <= len(data)
    assert end in (0, len(data)) or data[end - 1 : end] in (b"\n", b"\r")
    if final:
        assert end == len(data)


@given(st.text(alphabet="aü€😀", min_size=1, max_size=20))
def test_a_full_chunk_without_lines_is_cut_between_characters(text: str) -> None:
    chunk = (text.encode() * CHUNK_BYTES)[:CHUNK_BYTES]
    end = cut(chunk, final=False)
    assert CHUNK_BYTES - 8 <= end <= CHUNK_BYTES
    chunk[:end].decode()


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == []
    log.write_text("only\n")
    assert tail(log) == ["only"]
    log.write_bytes(b"".join(b"line %d \xff\n" % number for number in range(5000)))
    lines = tail(log)
    assert len(lines) == TAIL_LINES
    assert lines[-1].startswith("line 4999")
    log.write_text("x" * 100_000)
    assert len(tail(log)[0]) <= 16384
