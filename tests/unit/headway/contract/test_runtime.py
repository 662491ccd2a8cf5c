"""Messages of ranks: what is written is read back, and what cannot be stored is refused."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, asdict, fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.rank_lines import from_fields, from_line, to_line
from headway.contract.runtime import FirstStep, Message, Metrics, Progress, Switched, message_file

KINDS: tuple[type[Any], ...] = get_args(Message)
counts = st.integers(0, 2**31 - 1)
seconds = st.floats(0, 1e9)
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "int": counts,
    "int | None": st.one_of(st.none(), counts),
    "float": seconds,
    "bool": st.booleans(),
    "float | None": st.one_of(st.none(), seconds),
    "tuple[int, ...]": st.lists(counts, max_size=9).map(tuple),
    "tuple[float, ...]": st.lists(seconds, max_size=9).map(tuple),
    "tuple[str, ...]": st.lists(st.sampled_from(["10.0.0.2", "fe80::1"]), max_size=9).map(tuple),
    "str": st.sampled_from(["file:///c", "s3://bucket/übung"]),
    "str | None": st.sampled_from([None, "sqrt"]),
    "dict[str, float]": st.dictionaries(st.sampled_from(["loss", "Genauigkeit %"]), st.floats(-1e9, 1e9)),
}


def any_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{field.name: BY_TYPE[str(field.type)] for field in fields(kind)})


messages = st.one_of(*(any_of(kind) for kind in KINDS))


def metrics(**values: Any) -> dict[str, Any]:
    return {
        "type": "metrics",
        "rank": 0,
        "generation": 1,
        "at_s": 1e9,
        "epoch": 0,
        "samples": 5,
        "values": values,
    }


PROGRESS = {
    **asdict(
        Progress(
            rank=0,
            generation=1,
            at_s=1e9,
            epoch=0,
            samples=64,
            total_samples=None,
            steps=2,
            step_s_sum=0.2,
            step_s_squares=0.02,
            global_batch=32,
            local_batch=32,
            accumulation=1,
        )
    ),
    "type": "progress",
}


@given(messages)
def test_a_message_survives_its_line(message: Message) -> None:
    line = to_line(message)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert from_line(line) == message


@given(messages, st.dictionaries(st.sampled_from(["colour", "type2"]), st.integers()))
def test_fields_of_a_newer_rank_are_ignored(message: Message, extra: dict[str, int]) -> None:
    assert from_fields({**json.loads(to_line(message)), **extra}) == message


@given(messages, st.data())
def test_a_message_without_one_of_its_fields_is_refused_unless_an_older_rank_has_none(
    message: Message, data: st.DataObject
) -> None:
    content = json.loads(to_line(message))
    name = data.draw(st.sampled_from(sorted(content)))
    del content[name]
    defaults = {one.name: one.default for one in fields(message) if one.default is not MISSING} | {
        one.name: one.default_factory() for one in fields(message) if one.default_factory is not MISSING
    }
    if name in defaults:
        assert from_fields(content) == replace(message, **{name: defaults[name]})
    else:
        with pytest.raises(ValueError, match=r"missing|type"):
            from_fields(content)


def test_what_older_ranks_do_not_say_has_the_meaning_that_it_had() -> None:
    """The fields that came with live elasticity. Adding one without a default breaks running jobs."""
    old = {"type": "first_step", "rank": 0, "generation": 1, "at_s": 1e9, "samples": 8}
    assert from_fields(old) == FirstStep(rank=0, generation=1, at_s=1e9, samples=8, live=False)
    new = {"sync_s_sum", "local_batches", "gradient_sqr", "gradient_var"}
    progress = from_fields({name: value for name, value in PROGRESS.items() if name not in new})
    assert isinstance(progress, Progress)
    assert (progress.sync_s_sum, progress.local_batches) == (0.0, ())
    assert (progress.gradient_sqr, progress.gradient_var) == (None, None)
    assert progress.rank_sample_s == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(messages, st.data(), json_values)
def test_any_other_value_is_refused_or_can_be_stored(
    message: Message, data: st.DataObject, value: Any
) -> None:
    content = json.loads(to_line(message))
    content[data.draw(st.sampled_from(sorted(content)))] = value
    try:
        read = from_fields(content)
    except ValueError:
        return
    stored = json.dumps(asdict(read), allow_nan=False)
    assert "\\u0000" not in stored
    assert from_fields({**json.loads(stored), "type": read.TYPE}) == read


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samples", "64"),
        ("samples", True),
        ("samples", -1),
        ("samples", 2**53 + 1),
        ("samples", 1.5),
        ("samples", None),
        ("steps", 2**31),
        ("global_batch", 2**31),
        ("epoch", 2**31),
        ("at_s", math.nan),
        ("at_s", math.inf),
        ("at_s", 1e300),
        ("at_s", -1.0),
        ("step_s_sum", math.nan),
        ("step_s_sum", None),
        ("step_s_squares", "0.1"),
        ("total_samples", "many"),
        ("sync_s_sum", -0.1),
        ("local_batches", [4, -1]),
        ("local_batches", [4, True]),
        ("local_batches", [[4]]),
        ("local_batches", [2**31]),
        ("local_batches", [1] * 65_537),
        ("local_batches", "44"),
        ("local_batches", {"0": 4}),
        ("local_batches", None),
        ("rank_sample_s", [0.1, -0.1]),
        ("rank_sample_s", [math.nan]),
        ("rank_sample_s", ["0.1"]),
        ("rank_sample_s", [0.1] * 65_537),
        ("rank_sample_s", 0.1),
        ("rank_sample_s", None),
        ("gradient_sqr", -1e-9),
        ("gradient_sqr", math.inf),
        ("gradient_var", math.nan),
        ("gradient_var", 10**400),
        ("gradient_var", "0"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} of a progress message cannot be"):
        from_fields({**PROGRESS, field: value})


SWITCHED = {
    **asdict(
        Switched(
            rank=2,
            generation=3,
            at_s=1e9,
            samples=64,
            world_size=4,
            pause_s=0.05,
            lost_steps=1,
            sync_bytes=10**12,
        )
    ),
    "type": "switched",
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samples", -1),
        ("world_size", 2.0),
        ("world_size", "4"),
        ("pause_s", -0.1),
        ("pause_s", math.nan),
        ("pause_s", None),
        ("lost_steps", -1),
        ("lost_steps", False),
        ("sync_bytes", 2**53 + 1),
        ("sync_bytes", None),
        ("rank", -1),
        ("generation", 2**31),
    ],
)
def test_a_switch_with_a_wrong_value_is_refused_by_its_name(field: str, value: object) -> None:
    assert from_fields(SWITCHED).generation == 3
    with pytest.raises(ValueError, match=f"{field} of a switched message cannot be"):
        from_fields({**SWITCHED, field: value})


def test_noise_may_be_as_small_and_as_large_as_floats_are() -> None:
    """Squared norms of large models are above any time that a message may carry."""
    progress = from_fields({**PROGRESS, "gradient_sqr": 5e-324, "gradient_var": 1.7e308})
    assert isinstance(progress, Progress)
    assert (progress.gradient_sqr, progress.gradient_var) == (5e-324, 1.7e308)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "high", [1.0], 10**400])
def test_a_metric_that_is_no_finite_number_is_left_out(value: object) -> None:
    """A loss of NaN is common; JSON cannot carry it."""
    read = from_fields(metrics(loss=value, accuracy=0.5, epochs=3))
    assert isinstance(read, Metrics)
    assert read.values == {"accuracy": 0.5, "epochs": 3.0}


@pytest.mark.parametrize("name", ["lo\0ss", "\udc80", "a\nb", "x" * 5000])
def test_a_metric_with_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="values of a metrics message"):
        from_fields(metrics(**{name: 1.0}))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "not json",
        "[]",
        "3",
        "null",
        "{}",
        '{"type": null}',
        '{"type": "unknown"}',
        '{"type": "hello"}',
        "\x00",
        "[" * 100_000,
    ],
)
def test_a_line_that_is_no_message_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_line(line)


def test_each_rank_has_its_own_file() -> None:
    assert len({message_file(rank) for rank in range(100)}) == 100


def test_kinds_are_told_apart_by_their_type() -> None:
    assert len({kind.TYPE for kind in KINDS}) == len(KINDS)
