"""Handovers of an output folder while training goes on: rank 0 appends lines, and moves between nodes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.storage.stores import Folder
from tests.unit.worker_agent.output.conftest import Node

LOG = "steps.log"
NEWCOMER = 1_000_000


def append(node: Node, lines: str) -> None:
    with (node.folder / LOG).open("a") as log:
        log.write(lines)


def test_lines_appended_after_the_newcomer_fetched_are_there_after_the_move(a: Node, b: Node) -> None:
    append(a, "1")
    a.save(1)
    b.join(2)
    append(a, "2")
    a.give(1)
    taken = b.take(2, before=1, own=(1, NEWCOMER))
    assert (taken.marked, taken.conflicts) == (True, [])
    append(b, "3")
    b.save(2)
    assert b.files() == a_new_node(b).files() == {LOG: "123"}


def test_file_that_the_newcomer_holds_open_goes_on_after_the_lines_of_the_other_node(
    a: Node, b: Node
) -> None:
    append(a, "1")
    a.save(1)
    b.join(2)
    with (b.folder / LOG).open("a") as held_open:
        append(a, "2")
        a.give(1)
        b.take(2, before=1, own=(1, NEWCOMER))
        held_open.write("3")
    assert b.files() == {LOG: "123"}


def test_file_that_the_newcomer_wrote_before_it_took_over_gives_way_to_that_of_rank_0(
    a: Node, b: Node
) -> None:
    a.write("args.txt", "first")
    a.give(1)
    b.join(2)
    b.write("args.txt", "again")
    b.write("of-b.txt")
    b.take(2, before=1, own=(1, NEWCOMER))
    assert b.files() == {"args.txt": "first", "of-b.txt": "x"}


def test_file_that_rank_0_removed_is_removed_where_rank_0_goes_on(a: Node, b: Node) -> None:
    a.write("epoch-1.pt")
    a.save(1)
    b.join(2)
    (a.folder / "epoch-1.pt").unlink()
    a.give(1)
    b.take(2, before=1, own=(1, NEWCOMER))
    assert b.files() == {}


def test_take_without_the_mark_says_so_and_uses_what_was_saved(a: Node, b: Node) -> None:
    append(a, "1")
    a.save(1)
    append(a, "2")
    b.join(2)
    taken = b.take(2, before=1, own=(1, NEWCOMER))
    assert (taken.marked, b.files()) == (False, {LOG: "1"})


def test_late_save_of_the_giving_node_replaces_nothing_after_the_take(a: Node, b: Node) -> None:
    append(a, "1")
    a.save(1)
    b.join(2)
    b.take(2, before=1, own=(1, NEWCOMER))
    append(a, "late")
    a.save(1)
    append(b, "2")
    b.save(2)
    assert a_new_node(b).files() == {LOG: "12"}


def test_giving_node_that_keeps_ranks_saves_their_files_beside_those_of_rank_0(a: Node, b: Node) -> None:
    append(a, "1")
    a.write("rank-1.txt", "old")
    a.give(1)
    b.join(2)
    b.take(2, before=1, own=(1, NEWCOMER), stays=True)
    append(b, "2")
    b.save(2)
    a.write("rank-1.txt", "new")
    a.save(2, rank=1)
    assert a_new_node(b).files() == {LOG: "12", "rank-1.txt": "new"}


def a_new_node(beside: Node, generation: int = 99) -> Node:
    """A node that fetches the folder for a start of the whole job."""
    node = Node("new", Path(tempfile.mkdtemp(dir=beside.folder.parent)) / "new", beside.store)
    node.fetch(generation)
    return node


@settings(max_examples=25)
@pytest.mark.parametrize("nodes", [2, 3])
@given(moves=st.lists(st.tuples(st.lists(st.sampled_from("aps"), max_size=4), st.integers(0, 2)), max_size=6))
def test_every_line_is_there_once_and_in_order_after_any_moves(
    tmp_path_factory: pytest.TempPathFactory, nodes: int, moves: list[tuple[list[str], int]]
) -> None:
    """`a`: append a line. `s`: save while training. `p`: prepare the next node, which fetches."""
    folder = tmp_path_factory.mktemp("moves")
    store = Folder(folder / "store")
    held = [Node(f"n{number}", folder / f"n{number}", store) for number in range(nodes)]
    writer, generation, lines = held[0], 1, 0
    for actions, towards in moves:
        successor = held[towards % nodes]
        for action in actions:
            if action == "a":
                append(writer, f"{lines}\n")
                lines += 1
            elif action == "s":
                writer.save(generation, last=False)
            elif successor is not writer:
                successor.join(generation + 1)
        if successor is writer:
            continue
        successor.join(generation + 1)
        append(writer, f"{lines}\n")
        lines += 1
        writer.give(generation)
        successor.take(generation + 1, before=generation, own=(generation, NEWCOMER))
        writer, generation = successor, generation + 1
    writer.give(generation)
    found = a_new_node(writer, generation + 1).files().get(LOG, "")
    assert found.split() == [str(line) for line in range(lines)]
