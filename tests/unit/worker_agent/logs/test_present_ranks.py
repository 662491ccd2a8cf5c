from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headway.contract.renumbering import (
    Renumbering,
    file_id,
    ranks_file,
    renumbering_from_line,
    renumbering_to_line,
)
from worker_agent.host.folders import LoggedRun, RunFolder
from worker_agent.logs.present_ranks import PresentRanks
from worker_agent.logs.shipping import BURST, LogShipper


class Sink:
    """Keeps the pieces of rank 2: offset, data and the rank that it had."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes, int]] = []

    def ship_log(
        self, job_id: str, generation: int, rank: int, offset: int, data: bytes, *, present_rank: int
    ) -> bool:
        assert (job_id, generation, rank) == ("job", 1, 2), "the start of the process"
        self.pieces.append((offset, data, present_rank))
        return False


@pytest.fixture
def run(tmp_path: Path) -> LoggedRun:
    folder = RunFolder(tmp_path / "job" / "1")
    folder.control.mkdir(parents=True)
    return LoggedRun(folder, (2,))


def write(run: LoggedRun, data: bytes) -> None:
    with run.folder.log(2).open("ab") as file:
        file.write(data)


def note(run: LoggedRun, rank: int, *, at: int | None = None) -> None:
    status = run.folder.log(2).stat()
    sizes = {"another:file": 3, **({} if at is None else {file_id(status): at})}
    with (run.folder.control / ranks_file(2)).open("a", encoding="utf-8") as file:
        file.write(renumbering_to_line(Renumbering(rank, sizes)))


def shipper(sink: Sink, run: LoggedRun) -> LogShipper:
    made = LogShipper(sink, threading.Event())
    made.watch(run)
    return made


def test_a_piece_ends_where_its_process_has_another_rank(run: LoggedRun) -> None:
    sink = Sink()
    ship = shipper(sink, run)
    write(run, b"as 2\n")
    ship.run_once()
    write(run, b"also\nas 1\nas 0\nalso\n")
    note(run, 1, at=10)
    note(run, 0, at=15)
    ship.run_once()
    shipped = [(0, b"as 2\n", 2), (5, b"also\n", 2), (10, b"as 1\n", 1), (15, b"as 0\nalso\n", 0)]
    assert sink.pieces == shipped
    write(run, b"later\n")
    shipper(sink, run).run_once()  # another agent goes on
    assert sink.pieces == [*shipped, (25, b"later\n", 0)]


def test_a_change_whose_place_is_not_known_counts_from_the_size_of_the_log(run: LoggedRun) -> None:
    sink = Sink()
    ship = shipper(sink, run)
    write(run, b"before\n")
    note(run, 1)
    ship.run_once()
    write(run, b"after\n")
    ship.run_once()
    assert sink.pieces == [(0, b"before\n", 2), (7, b"after\n", 1)]


def test_a_job_may_write_anything_into_its_file(run: LoggedRun) -> None:
    write(run, b"x" * 100)
    notes = run.folder.control / ranks_file(2)
    ranks = PresentRanks(notes, run.folder.log(2), 2)
    ranks.update(100)
    notes.write_bytes(b"\xff\n{}\n[1]\n" + b"{" * 200_000 + b"\n")
    for _ in range(5):
        ranks.update(100)
    note(run, 1, at=50)
    note(run, 3, at=20)  # before the change that is known already
    with notes.open("ab") as file:
        file.write(b'{"rank": 7')  # not whole yet
    ranks.update(100)
    assert [ranks.at(offset) for offset in (0, 49, 50, 99)] == [2, 2, 3, 3]
    assert ranks.parts(40, 60) == [(40, 50, 2), (50, 60, 3)]
    assert ranks.parts(0, 50) == [(0, 50, 2)]


def test_a_job_that_claims_many_ranks_makes_few_pieces_and_little_memory(run: LoggedRun) -> None:
    sink = Sink()
    ship = shipper(sink, run)
    output = b"x\n" * 100_000
    write(run, output)
    log, notes = run.folder.log(2), run.folder.control / ranks_file(2)
    name = file_id(log.stat())
    lines = (renumbering_to_line(Renumbering(at % 7, {name: at})) for at in range(1, 20_000))
    notes.write_text("".join(lines), encoding="utf-8")
    for _ in range(30):
        ship.run_once()
        write(run, b"y\n")
    assert len(sink.pieces) < 3 * BURST
    assert sum(len(data) for _, data, _ in sink.pieces) >= len(output), "nothing is held back"
    ranks = PresentRanks(notes, log, 2)
    for _ in range(30):
        ranks.update(len(output))
    assert len(ranks.parts(0, len(output))) < 3 * BURST
    assert ranks.at(len(output)) == 19_999 % 7


@pytest.mark.parametrize(
    "line",
    [
        '{"rank": -1, "sizes": {}}',
        '{"rank": 1000000, "sizes": {}}',
        '{"rank": true, "sizes": {}}',
        '{"rank": 1, "sizes": {"a": "b"}}',
        '{"rank": 1, "sizes": []}',
        '{"rank": 1}',
        "3",
        "[" * 100_000,
    ],
)
def test_what_is_no_note(line: str) -> None:
    assert renumbering_from_line(line) is None
