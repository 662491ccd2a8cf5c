"""The order file as a rank looks at it between steps."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from headway.contract.orders import ORDER_FILE, Order, order_to_json
from headway.train.membership.orders import Orders

ORDER = Order(generation=4, world_size=2, store="127.0.0.1:1", members={"1.0": 0, "4.1": 1})


def give(folder: Path, text: str) -> None:
    """As an agent does: the file is replaced whole."""
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / ORDER_FILE)


def test_outside_headway_and_before_the_first_there_is_no_order(tmp_path: Path) -> None:
    assert Orders(None).newer_than(0) is None
    assert Orders(tmp_path).newer_than(0) is None


def test_an_order_is_there_for_the_generations_before_it(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    give(tmp_path, order_to_json(ORDER))
    assert orders.newer_than(3) == ORDER
    assert orders.newer_than(4) is None
    assert orders.newer_than(5) is None
    assert orders.newer_than(3) == ORDER


def test_a_newer_order_replaces_it(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    for generation in range(5, 30):
        newer = replace(ORDER, generation=generation)
        give(tmp_path, order_to_json(newer))
        assert orders.newer_than(generation - 1) == newer


def test_a_file_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    give(tmp_path, order_to_json(ORDER))
    first = orders.newer_than(0)
    path = tmp_path / ORDER_FILE
    before = path.stat()
    path.write_text(order_to_json(replace(ORDER, generation=9)))  # in place, which no agent does
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert orders.newer_than(0) is first
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert orders.newer_than(0) == replace(ORDER, generation=9)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"generation": "two"}', "\udcff"])
def test_one_that_cannot_be_read_is_ignored_and_said_once(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = Orders(tmp_path)
    give(tmp_path, order_to_json(ORDER))
    assert orders.newer_than(0) == ORDER
    (tmp_path / "new").write_bytes(text.encode(errors="surrogateescape"))
    (tmp_path / "new").rename(tmp_path / ORDER_FILE)
    for _ in range(3):
        assert orders.newer_than(0) == ORDER, "the last one that could be read still holds"
    assert capsys.readouterr().err.count("is invalid and is ignored") == 1
    give(tmp_path, order_to_json(replace(ORDER, generation=6)))
    assert orders.newer_than(4) == replace(ORDER, generation=6)


def test_one_that_cannot_be_read_now_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too many open files, for example. A folder stands for it: even root cannot read that."""
    orders = Orders(tmp_path)
    (tmp_path / ORDER_FILE).mkdir()
    assert orders.newer_than(0) is None
    assert "the next step tries again" in capsys.readouterr().err
    (tmp_path / ORDER_FILE).rmdir()
    give(tmp_path, order_to_json(ORDER))
    assert orders.newer_than(0) == ORDER


def test_it_may_be_taken_away(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    give(tmp_path, order_to_json(ORDER))
    assert orders.newer_than(0) == ORDER
    (tmp_path / ORDER_FILE).unlink()
    assert orders.newer_than(0) is None


def test_the_expected_losses_are_those_of_the_start_until_an_order_has_others(tmp_path: Path) -> None:
    assert Orders(None).losses_per_h() is None
    orders = Orders(tmp_path, losses_per_h=0.5)
    assert orders.losses_per_h() == 0.5
    give(tmp_path, order_to_json(ORDER))
    assert orders.losses_per_h() == 0.5, "an older service names none"
    give(tmp_path, order_to_json(replace(ORDER, losses_per_h=2.0, losses_at_s=1.0)))
    assert orders.losses_per_h() == 2.0
    give(tmp_path, order_to_json(replace(ORDER, losses_per_h=0.0, losses_at_s=2.0)))
    assert orders.losses_per_h() == 0.0
