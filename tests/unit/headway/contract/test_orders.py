"""Orders: what an agent writes a rank reads, of any version; what is none is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.orders import BatchPlan, Order, member_id, order_from_json, order_to_json
from headway.contract.values.meshes import MeshShape

numbers = st.integers(0, 2**31 - 1)
plans = st.builds(BatchPlan, global_batch=st.integers(1, 2**31 - 1), effect=st.floats(0, 4))
orders = st.builds(
    Order,
    generation=numbers,
    world_size=st.integers(1, 1000),
    store=st.sampled_from(["127.0.0.1:29500", "[::1]:80", "node-3.example:1"]),
    members=st.dictionaries(st.builds(member_id, numbers, numbers), numbers, max_size=9),
    lost=st.booleans(),
    batch=st.none() | plans,
    losses_per_h=st.none() | st.floats(0, 1e6),
    losses_at_s=st.floats(0, 1e10),
    speeds=st.lists(st.floats(1e-6, 1e6), max_size=4).map(tuple),
    mesh=st.none() | st.builds(MeshShape, fsdp=st.integers(1, 9), tp=st.integers(1, 9)),
)
PLAIN = Order(generation=2, world_size=1, store="127.0.0.1:1", members={"1.0": 0})


@given(orders)
def test_an_order_survives_its_file(order: Order) -> None:
    assert order_from_json(order_to_json(order)) == order


@given(orders, st.dictionaries(st.sampled_from(["colour", "since"]), st.integers() | st.lists(st.none())))
def test_fields_of_a_newer_agent_are_ignored(order: Order, extra: dict[str, Any]) -> None:
    written = json.loads(order_to_json(order))
    if order.batch is not None:
        written["batch"].update(extra)
    assert order_from_json(json.dumps({**written, **extra})) == order


def test_an_older_agent_says_nothing_of_losses_and_batches() -> None:
    written = json.loads(order_to_json(PLAIN))
    for name in ("lost", "batch", "losses_per_h", "losses_at_s", "speeds", "mesh"):
        del written[name]
    assert order_from_json(json.dumps(written)) == PLAIN


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("generation", None),
        ("generation", "two"),
        ("generation", float("inf")),
        ("world_size", []),
        ("batch", {"global_batch": 64, "effect": -1.0}),
        ("batch", {"global_batch": 64, "effect": "much"}),
        ("members", None),
        ("members", ["1.0"]),
        ("members", {"1.0": "first"}),
        ("members", {"1.0": None}),
        ("mesh", {"tp": 0}),
        ("mesh", {"tp": "two"}),
        ("mesh", "tp=2"),
        ("speeds", 2),
        ("speeds", ["fast"]),
        ("speeds", [0]),
        ("speeds", [float("inf")]),
        ("batch", 64),
        ("batch", {"other": 3}),
        ("batch", {"global_batch": "many"}),
        ("losses_per_h", "many"),
        ("losses_per_h", -0.1),
        ("losses_per_h", float("nan")),
        ("losses_per_h", float("inf")),
        ("losses_at_s", None),
        ("losses_at_s", "today"),
    ],
)
def test_a_wrong_value_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        order_from_json(json.dumps({**json.loads(order_to_json(PLAIN)), field: value}))


@pytest.mark.parametrize("field", ["generation", "world_size", "store", "members"])
def test_an_order_without_one_of_its_fields_is_refused(field: str) -> None:
    written = json.loads(order_to_json(PLAIN))
    del written[field]
    with pytest.raises(ValueError, match="not an order"):
        order_from_json(json.dumps(written))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"order"', "{}", "[" * 100_000, "\x00"])
def test_what_is_no_order_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        order_from_json(text)


@given(orders, st.data())
def test_a_file_that_was_cut_is_refused(order: Order, data: st.DataObject) -> None:
    text = order_to_json(order)
    with pytest.raises(ValueError, match=r".+"):
        order_from_json(text[: data.draw(st.integers(0, len(text) - 1))])


def test_a_process_keeps_its_name() -> None:
    assert member_id(3, 12) == "3.12"
    assert len({member_id(generation, rank) for generation in range(20) for rank in range(20)}) == 400
