from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.contract.rank_lines import from_line
from headway.contract.renumbering import file_id, ranks_file, renumbering_from_line
from headway.contract.runtime import Hello, Progress, Stopped, message_file
from headway.train.membership.control import Mailbox, note_rank


def test_messages_are_lines_that_the_agent_can_read(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path, rank=2, generation=5)
    mailbox.send(Hello)
    mailbox.send(Stopped, samples=640)
    first, second = (tmp_path / message_file(2)).read_text().splitlines()
    assert isinstance(from_line(first), Hello)
    stopped = from_line(second)
    assert isinstance(stopped, Stopped)
    assert (stopped.rank, stopped.generation, stopped.samples) == (2, 5, 640)
    assert stopped.at_s > 1e9


def test_a_second_process_of_a_rank_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for _ in range(2):
        Mailbox(tmp_path, rank=0, generation=1).send(Hello)
    assert len((tmp_path / message_file(0)).read_text().splitlines()) == 2


def test_outside_headway_nothing_is_sent() -> None:
    Mailbox(None, rank=0, generation=0).send(Hello)


def test_a_message_with_wrong_fields_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        Mailbox(tmp_path, rank=0, generation=0).send(Progress, samples=1)


def test_a_full_disk_does_not_end_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / message_file(0)).symlink_to("/dev/full")
    mailbox = Mailbox(tmp_path, rank=0, generation=0)
    mailbox.send(Hello)
    mailbox.send(Hello)
    assert capsys.readouterr().err.count("messages to the agent have to wait") == 1


def test_what_a_full_disk_did_not_take_is_sent_when_there_is_room(tmp_path: Path) -> None:
    file = tmp_path / "control" / message_file(0)
    mailbox = Mailbox(file.parent, rank=0, generation=0)  # whose folder cannot even be entered yet
    for samples in range(1100):
        mailbox.send(Stopped, samples=samples)
    file.parent.mkdir()
    mailbox.send(Hello)
    *stopped, last = map(from_line, file.read_text().splitlines())
    assert isinstance(last, Hello)
    assert [one.samples for one in stopped if isinstance(one, Stopped)] == [0, *range(102, 1100)], "bounded"


RENUMBERED = """
import sys
from pathlib import Path
from headway.train.membership.control import note_rank
folder = Path(sys.argv[1])
print("as 2")
note_rank(folder, born_rank=2, rank=1)
print("as 1")
note_rank(folder, born_rank=2, rank=0)
"""


def test_a_rank_notes_where_in_its_output_it_has_another_rank(tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with log.open("wb") as output:
        command = [sys.executable, "-c", RENUMBERED, str(tmp_path)]
        subprocess.run(command, stdout=output, stderr=output, env=env, check=True)
    written = (tmp_path / ranks_file(2)).read_text(encoding="utf-8").splitlines()
    notes = [note for line in written if (note := renumbering_from_line(line)) is not None]
    assert [(note.rank, note.sizes[file_id(log.stat())]) for note in notes] == [(1, 5), (0, 10)]


def test_a_rank_that_cannot_note_its_rank_trains_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note_rank(tmp_path / "none", born_rank=2, rank=1)
    assert "the log goes on under rank 2 instead of 1" in capsys.readouterr().err
    note_rank(None, born_rank=2, rank=1)
