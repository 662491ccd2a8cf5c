from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_agent.host.folders import LoggedRun, RunFolder
from worker_agent.link.service_api import Refused, Unreachable
from worker_agent.logs.pieces import CHUNK_BYTES, tail
from worker_agent.logs.punch_hole import Holes
from worker_agent.logs.shipping import BURST, PACE_S, TURN_BYTES, LogShipper


class Sink:
    """Keeps what is shipped; fails when told to."""

    def __init__(self) -> None:
        self.data: dict[int, bytearray] = {}
        self.calls = 0
        self.error: Exception | None = None

    def fail(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error

    def ship_log(
        self, job_id: str, generation: int, rank: int, offset: int, data: bytes, *, present_rank: int
    ) -> None:
        self.fail()
        log = self.data.setdefault(rank, bytearray())
        assert offset <= len(log), "no holes"
        log[offset : offset + len(data)] = data


@pytest.fixture
def run(tmp_path: Path) -> LoggedRun:
    folder = RunFolder(tmp_path / "job" / "1")
    folder.path.mkdir(parents=True)
    return LoggedRun(folder, (0, 1))


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
    assert (bytes(sink.data[0]), sink.calls) == (b"one\ntwo\n", 2)


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


MIB = 1 << 20
LINE = b"0123456789abcde\n"


class Pieces(Sink):
    """Keeps what is shipped by its offset, with holes where something was left out."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[tuple[int, bytes]] = []

    def ship_log(
        self, job_id: str, generation: int, rank: int, offset: int, data: bytes, *, present_rank: int
    ) -> None:
        self.fail()
        if rank == 0:
            assert offset >= max((begin + len(piece) for begin, piece in self.pieces[-1:]), default=0)
            self.pieces.append((offset, data))

    @property
    def text(self) -> str:
        return b"".join(data for _, data in self.pieces).decode()


class Hours:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 5000.0

    def __call__(self) -> float:
        return self.now_s


def flood(run: LoggedRun, size_bytes: int) -> None:
    with run.folder.log(0).open("ab") as log:
        log.write(LINE * (size_bytes // len(LINE)))


def test_a_flood_is_cut_off_with_a_word_and_does_not_fill_the_disk(run: LoggedRun) -> None:
    sink = Pieces()
    made = LogShipper(sink, threading.Event(), MIB, now_s=Hours(), holes=Holes(step_bytes=1 << 16))
    made.watch(run)
    for _ in range(4):
        flood(run, 3 * MIB)
        made.run_once()
    assert sink.text.count("more than 1 MiB within an hour") == 1, "the live stream hears of it at once"
    assert len(sink.text) < MIB + 300
    log = run.folder.log(0).stat()
    assert log.st_size == 12 * MIB
    assert log.st_blocks * 512 < 2.5 * MIB
    with run.folder.log(0).open("ab") as file:
        file.write(b"Traceback\nthe end\n")
    made.over(run.folder.name)
    made.run_once()
    assert tail(run.folder.log(0))[-1] == "the end", "the tail of a failure is still there"
    assert sink.text.endswith("Traceback\nthe end\n"), "and is shipped"
    (missing,) = re.findall(r"\[headway\] Truncated: (\d+) bytes are missing here", sink.text)
    real = sum(len(data) for _, data in sink.pieces if b"[headway]" not in data)
    assert real + int(missing) == run.folder.log(0).stat().st_size, "every byte is there or counted"
    assert run.folder.shipped.exists()


def test_after_the_hour_output_goes_on(run: LoggedRun) -> None:
    sink, clock = Pieces(), Hours()
    made = LogShipper(sink, threading.Event(), MIB, now_s=clock)
    made.watch(run)
    for hour in range(3):
        with run.folder.log(0).open("ab") as log:
            log.write(b"hour %d\n" % hour)
        made.run_once()
        flood(run, 2 * MIB)
        made.run_once()
        clock.now_s += 3600
    lines = [line for line in sink.text.splitlines() if not line.startswith("012345")]
    assert [line for line in lines if line.startswith("hour")] == ["hour 0", "hour 1", "hour 2"]
    assert sum("are missing here" in line for line in lines) == 2
    assert sum("within an hour" in line for line in lines) == 3


def test_an_agent_that_is_started_again_knows_of_the_gap_and_of_the_hour(run: LoggedRun) -> None:
    sink, clock = Pieces(), Hours()

    def agent() -> LogShipper:
        made = LogShipper(sink, threading.Event(), MIB, now_s=clock)
        made.watch(run)
        return made

    flood(run, 2 * MIB)
    agent().run_once()
    flood(run, MIB)
    agent().run_once()
    assert sink.text.count("[headway]") == 1
    clock.now_s += 3600
    flood(run, MIB // 2)
    agent().run_once()
    assert sink.text.count("are missing here") == 1
    clock.now_s = 10.0  # the host was booted anew
    flood(run, 2 * MIB)
    agent().run_once()
    assert sink.text.count("[headway]") == 3, "a new quota, since nobody knows of the hour"


@pytest.mark.parametrize("starts_again", [False, True])
def test_while_the_service_is_away_the_disk_does_not_fill(run: LoggedRun, starts_again: bool) -> None:
    sink, clock = Pieces(), Hours()
    sink.error = Unreachable("away")

    def agent() -> LogShipper:
        made = LogShipper(sink, threading.Event(), 8 * MIB, now_s=clock, holes=Holes(step_bytes=1 << 16))
        made.watch(run)
        return made

    made = agent()
    for _ in range(8):
        flood(run, 12 * MIB)
        made.keep_short()
        with pytest.raises(Unreachable):
            made.run_once()
        made = agent() if starts_again else made
    log = run.folder.log(0).stat()
    assert log.st_size == 96 * MIB
    assert log.st_blocks * 512 < 16 * MIB
    sink.error = None
    for _ in range(4):  # an hour's quota holds no more than what was kept
        made.run_once()
        clock.now_s += 3600
    flood(run, MIB)
    made.over(run.folder.name)
    made.run_once()
    assert b"\0" not in b"".join(data for _, data in sink.pieces), "nothing is read where it was given up"
    counted = [int(found) for found in re.findall(r"Truncated: (\d+) bytes are missing here", sink.text)]
    real = sum(len(data) for _, data in sink.pieces if b"[headway]" not in data)
    assert len(counted) == 1
    assert real + counted[0] == run.folder.log(0).stat().st_size, "every byte is there or counted"
    assert {line for line in sink.text.splitlines() if "headway" not in line} <= {LINE.decode().strip(), ""}


def test_a_rank_that_floods_leaves_its_neighbours_their_turn(run: LoggedRun) -> None:
    sink = Sink()
    made = shipper(sink, run, 40 * MIB)
    flood(run, 3 * TURN_BYTES)
    run.folder.log(1).write_bytes(b"me too\n")
    made.run_once()
    assert len(sink.data[0]) == TURN_BYTES
    assert sink.data[1] == b"me too\n"


class Followed(Pieces):
    """Somebody follows."""

    follows = True

    def ship_log(
        self, job_id: str, generation: int, rank: int, offset: int, data: bytes, *, present_rank: int
    ) -> bool:
        super().ship_log(job_id, generation, rank, offset, data, present_rank=present_rank)
        return self.follows


def test_who_follows_gets_lines_soon_however_long_the_job_has_printed(run: LoggedRun) -> None:
    sink, clock = Followed(), Hours()
    sink.follows = False
    made = LogShipper(sink, threading.Event(), now_s=clock)
    made.watch(run)

    def pieces_of(seconds: int) -> int:
        before = len(sink.pieces)
        for _ in range(seconds):
            flood(run, len(LINE))
            made.run_once()
            clock.now_s += 1.0
        return len(sink.pieces) - before

    pieces_of(1000)
    assert pieces_of(100) <= 100 / PACE_S + 1
    sink.follows = True
    pieces_of(int(PACE_S) + 1)
    assert pieces_of(100) >= 99
    sink.follows = False
    pieces_of(1)
    assert pieces_of(100) <= 100 / PACE_S + 1


def test_who_prints_all_the_time_is_shipped_in_fewer_pieces(run: LoggedRun) -> None:
    sink, clock = Pieces(), Hours()
    made = LogShipper(sink, threading.Event(), now_s=clock)
    made.watch(run)
    for _ in range(1000):
        flood(run, len(LINE))
        made.run_once()
        clock.now_s += 1.0
    assert BURST <= len(sink.pieces) <= BURST + 1000 / PACE_S + 1
    made.over(run.folder.name)
    made.run_once()
    assert sink.text == (LINE * 1000).decode(), "nothing is lost by it"


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3000)), max_size=30))
def test_every_byte_is_shipped_or_counted(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("run") / "job" / "1")
    folder.path.mkdir(parents=True)
    run, sink, clock = LoggedRun(folder, (0,)), Pieces(), Hours()
    made = LogShipper(sink, threading.Event(), 2000, now_s=clock)
    made.watch(run)
    for lines, seconds in steps:
        with folder.log(0).open("ab") as log:
            log.write(b"x\n" * lines)
        made.run_once()
        clock.now_s += seconds
    made.over(folder.name)
    made.run_once()
    missing = sum(int(found) for found in re.findall(r"Truncated: (\d+) bytes are missing", sink.text))
    real = sum(len(data) for _, data in sink.pieces if b"[headway]" not in data)
    size = folder.log(0).stat().st_size if folder.log(0).exists() else 0
    assert real + missing == size


def test_character_at_a_pause_is_held_back_until_it_ends(run: LoggedRun) -> None:
    sink = Sink()
    ship = shipper(sink, run)
    run.folder.log(0).write_bytes("café €".encode()[:-1])
    for _ in range(3):
        ship.run_once()
    assert sink.data[0] == "café ".encode()
    with run.folder.log(0).open("ab") as file:
        file.write("€".encode()[-1:])
    for _ in range(2):
        ship.run_once()
    assert sink.data[0].decode() == "café €"


def test_character_without_its_end_is_shipped_with_the_final_piece(run: LoggedRun) -> None:
    sink = Sink()
    ship = shipper(sink, run)
    run.folder.log(0).write_bytes("€".encode()[:-1])
    ship.over(run.folder.name)
    ship.run_once()
    assert sink.data[0] == "€".encode()[:-1]


@pytest.mark.parametrize("quota_bytes", range(50_000, 50_003))
@pytest.mark.parametrize("begins", ["", "1"])
def test_characters_around_left_out_output_stay_whole(run: LoggedRun, quota_bytes: int, begins: str) -> None:
    """A long line without an end: the quota ends, and the last words begin, within a character or not."""
    sink = Pieces()
    run.folder.log(0).write_text(begins + "训" * 200_000, encoding="utf-8")
    ship = shipper(sink, run, quota_bytes)
    for _ in range(3):
        ship.run_once()
    ship.over(run.folder.name)
    ship.run_once()
    assert "Truncated" in sink.text
    for _, data in sink.pieces:
        data.decode()
