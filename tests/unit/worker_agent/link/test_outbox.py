from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.agents import InterruptionKind, InterruptionNotice, RankMessage, Released
from tests.unit.headway.contract.test_merging import entry, progress
from worker_agent.link.outbox import Draft, Outbox, ReadPosition


def released(generation: int) -> Draft:
    return lambda sequence, at: Released(sequence=sequence, job_id="job", generation=generation, at=at)


def message(kind: str, number: int = 0) -> Draft:
    return lambda sequence, at: RankMessage(
        sequence=sequence, job_id="job", generation=1, rank=0, at=at, message={"type": kind, "number": number}
    )


def generations(outbox: Outbox) -> list[int]:
    return [entry.generation for entry in outbox.take(1000)[0]]


Open = Callable[..., Outbox]


@pytest.fixture
def open_outbox(tmp_path: Path) -> Iterator[Open]:
    """Opens the outbox of the test; again means as an agent that takes over."""
    opened: list[Outbox] = []

    def open_one(**options: int) -> Outbox:
        opened.append(Outbox(tmp_path / "journal", **options))
        return opened[-1]

    yield open_one
    for outbox in opened:
        outbox.close()


def test_entries_stay_until_they_are_delivered_and_keep_their_order(open_outbox: Open) -> None:
    outbox = open_outbox()
    for generation in (1, 2, 3):
        outbox.add(released(generation))
    entries, _ = outbox.take(2)
    assert [entry.generation for entry in entries] == [1, 2]
    assert outbox.take(2)[0] == entries
    outbox.delivered(entries, ())
    assert generations(outbox) == [3]


def test_a_new_agent_goes_on_with_the_same_sequence_numbers(open_outbox: Open) -> None:
    first = open_outbox()
    for generation in (1, 2, 3):
        first.add(released(generation))
    first.delivered(first.take(1)[0], ())
    left = first.take(10)[0]
    second = open_outbox()
    assert second.take(10)[0] == left
    second.add(released(4))
    assert second.take(10)[0][-1].sequence > left[-1].sequence


def test_a_line_that_a_crash_cut_off_is_dropped(open_outbox: Open, tmp_path: Path) -> None:
    outbox = open_outbox()
    outbox.add(released(1))
    with (tmp_path / "journal").open("a") as file:
        file.write('{"entry": {"kind": "rele')
    assert generations(open_outbox()) == [1]


def test_messages_and_read_positions_are_remembered_together(open_outbox: Open) -> None:
    outbox = open_outbox()
    outbox.add(message("hello"), ReadPosition("job/1", 0, 40))
    outbox.add(message("hello"), ReadPosition("job/1", 1, 7))
    outbox.add(message("hello"), ReadPosition("job/1", 0, 90))
    outbox.delivered(outbox.take(10)[0], ())
    again = open_outbox()
    assert (again.position("job/1", 0), again.position("job/1", 1), again.position("job/1", 2)) == (90, 7, 0)
    again.forget("job/1")
    assert open_outbox().position("job/1", 0) in (0, 90)
    assert again.position("job/1", 0) == 0


def test_when_the_service_is_away_for_long_only_progress_is_lost(open_outbox: Open) -> None:
    outbox = open_outbox(capacity=10)
    outbox.add(message("hello"))
    for number in range(50):
        outbox.add(message("progress", number))
    outbox.add(released(9))
    entries = outbox.take(100)[0]
    assert len(entries) == 10
    assert isinstance(entries[-1], Released)
    said = [entry.message for entry in entries if isinstance(entry, RankMessage)]
    assert said[0]["type"] == "hello"
    assert [fields["number"] for fields in said[1:]] == list(range(42, 50)), "the newest ones stay"


def test_what_was_sent_already_is_not_dropped(open_outbox: Open) -> None:
    outbox = open_outbox(capacity=3)
    for number in range(3):
        outbox.add(message("progress", number))
    sent = outbox.take(3)[0]
    outbox.add(message("progress", 3))
    assert outbox.take(10)[0][:3] == sent


def test_acknowledgements_are_sent_until_delivered(open_outbox: Open) -> None:
    outbox = open_outbox()
    outbox.acknowledge("c1")
    _, acknowledged = outbox.take(10)
    outbox.acknowledge("c2")
    outbox.delivered((), acknowledged)
    assert outbox.take(10)[1] == ["c2"]
    assert not outbox.empty()


def test_waiting_ends_at_once_for_what_is_urgent(open_outbox: Open) -> None:
    outbox = open_outbox()
    assert not outbox.wait(0.0)
    outbox.add(message("progress"))
    assert not outbox.wait(0.05), "it waits for company"
    outbox.add(released(1), urgent=True)
    assert outbox.wait(60.0)
    outbox.take(10)
    assert not outbox.wait(0.05)


def test_the_journal_does_not_grow_for_ever(open_outbox: Open, tmp_path: Path) -> None:
    outbox = open_outbox()
    for number in range(5000):
        outbox.add(message("progress", number), ReadPosition("job/1", 0, number))
        outbox.delivered(outbox.take(1)[0], ())
    lines = (tmp_path / "journal").read_text().splitlines()
    assert len(lines) < 2100
    assert all(json.loads(line) for line in lines)
    assert open_outbox().position("job/1", 0) == 4999


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["add", "send", "lose", "restart"]), max_size=40))
def test_everything_is_delivered_in_order_over_any_faults(
    operations: list[str],
) -> None:
    added, received = 0, []
    with TemporaryDirectory() as folder:
        outbox = Outbox(Path(folder) / "journal")
        for operation in [*operations, "send"]:
            match operation:
                case "add":
                    added += 1
                    outbox.add(released(added))
                case "restart":
                    outbox.close()
                    outbox = Outbox(Path(folder) / "journal")
                case _:
                    entries, _ = outbox.take(1000)
                    received += entries
                    if operation == "send":
                        outbox.delivered(entries, ())
        outbox.close()
    unique = {entry.sequence: entry.generation for entry in received}
    assert list(unique.values()) == list(range(1, added + 1))
    assert list(unique) == sorted(unique)


def test_an_entry_that_only_a_newer_agent_knows_is_dropped(open_outbox: Open, tmp_path: Path) -> None:
    """An agent that was put back to an older version must start."""
    open_outbox().add(released(1))
    last = json.loads((tmp_path / "journal").read_text().splitlines()[-1])
    newer = {**last["entry"], "kind": "dance", "sequence": last["entry"]["sequence"] + 10**6}
    with (tmp_path / "journal").open("a") as journal:
        journal.write(json.dumps({"entry": newer}) + "\n")
    reopened = open_outbox()
    reopened.add(released(2))
    entries, _ = reopened.take(10)
    assert [entry.generation for entry in entries] == [1, 2]
    assert entries[1].sequence > newer["sequence"], "numbers go on from everything that was ever given out"


def test_the_journal_does_not_grow_while_the_service_is_away(open_outbox: Open, tmp_path: Path) -> None:
    outbox = open_outbox(capacity=100)
    for number in range(20_000):
        outbox.add(message("progress", number), ReadPosition("job/1", 0, number))
    assert len((tmp_path / "journal").read_text().splitlines()) < 2500
    assert open_outbox(capacity=100).position("job/1", 0) == 19_999


def test_positions_of_a_run_that_is_over_are_forgotten_for_good(open_outbox: Open) -> None:
    outbox = open_outbox()
    outbox.add(message("metrics"), ReadPosition("job/1", 0, 70))
    outbox.add(message("metrics"), ReadPosition("job/2", 0, 30))
    outbox.forget("job/1")
    after = open_outbox()
    assert (after.position("job/1", 0), after.position("job/2", 0)) == (0, 30)


def steps(number: int) -> Draft:
    said = progress(steps=number, samples=number)
    return lambda sequence, at: entry(sequence, "job", said).model_copy(update={"at": at})


def taken_steps(outbox: Outbox) -> list[int]:
    return [one.message["steps"] for one in outbox.take(100)[0] if isinstance(one, RankMessage)]


def test_progress_that_was_never_sent_is_said_in_one_entry(open_outbox: Open) -> None:
    outbox = open_outbox()
    for number in (1, 2, 4):
        outbox.add(steps(number))
    assert taken_steps(outbox) == [7]


def test_what_is_about_the_node_stays_in_its_place(open_outbox: Open) -> None:
    outbox = open_outbox()
    outbox.add(steps(1))
    outbox.add(
        lambda sequence, at: InterruptionNotice(
            sequence=sequence, at=at, what=InterruptionKind.REBALANCE, action="soon"
        )
    )
    outbox.add(steps(2))
    outbox.add(released(1))
    entries, _ = outbox.take(100)
    assert [one.kind for one in entries] == ["interruption_notice", "rank_message", "released"]
    assert [one.sequence for one in entries] == sorted(one.sequence for one in entries)


def test_what_was_sent_is_sent_again_as_it_was(open_outbox: Open) -> None:
    """The service may have it already: it would count it twice within another."""
    outbox = open_outbox()
    outbox.add(steps(1))
    outbox.add(steps(2))
    sent, _ = outbox.take(100)  # and no answer comes
    outbox.add(steps(4))
    outbox.add(steps(8))
    again, _ = outbox.take(100)
    assert list(again[:1]) == list(sent)
    assert taken_steps(outbox) == [3, 12]
    outbox.delivered(again[:1], ())
    assert taken_steps(outbox) == [12]


def test_an_agent_that_takes_over_counts_no_step_twice(open_outbox: Open) -> None:
    """The service may have what the agent before sent, although no answer came."""
    first = open_outbox()
    first.add(steps(1))
    first.add(steps(2))
    (sent,), _ = first.take(100)
    after = open_outbox()
    after.add(steps(4))
    entries, _ = after.take(100)
    counted = [one for one in entries if one.sequence > sent.sequence]
    assert [one.message["steps"] for one in counted if isinstance(one, RankMessage)] == [4]
    assert sum(taken_steps(after)) == 7, "if the service has nothing yet, all steps count"
