"""The job file: defaults, bounds, and the name of every wrong field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.contract.spec import MAX_SLOTS, Elastic, JobSpec, Resize
from headway.contract.spec_parts import RESERVED_ENV, PartialBackprop

OK: dict[str, Any] = {"name": "job", "run": "python train.py"}


def wrong_fields(**changes: Any) -> list[str]:
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate({**OK, **changes})
    return [".".join(str(part) for part in one["loc"]) for one in refused.value.errors()]


def test_a_name_and_a_command_are_enough() -> None:
    spec = JobSpec.model_validate(OK)
    assert (spec.elastic.min, spec.elastic.max, spec.elastic.resize) == (1, 1, Resize.LIVE)
    assert (spec.batch.policy, spec.batch.global_, spec.batch.lr_rule) == ("fixed", None, "auto")
    assert (spec.checkpoint.every, spec.checkpoint.keep, spec.checkpoint.grace_s) == ("auto", 3, 60.0)
    assert (spec.retry.user_errors, spec.retry.infrastructure) == (0, 3)
    assert (spec.priority, spec.project, spec.market) == (50, "default", "on-demand")
    assert spec.hung_after == "auto"
    assert spec.trackers == []


@pytest.mark.parametrize("missing", ["name", "run"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(ValidationError, match=missing):
        JobSpec.model_validate({key: value for key, value in OK.items() if key != missing})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "-a"}, "name"),
        ({"name": "a-"}, "name"),
        ({"name": "A"}, "name"),
        ({"name": "a_b"}, "name"),
        ({"name": "a" * 64}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": 5}, "name"),
        ({"run": ""}, "run"),
        ({"hung_after": "500ms"}, "hung_after"),
        ({"hung_after": "8d"}, "hung_after"),
        ({"hung_after": "soon"}, "hung_after"),
        ({"hung_after": -1}, "hung_after"),
        ({"hung_after": None}, "hung_after"),
        ({"run": " \n"}, "run"),
        ({"run": "x\0"}, "run"),
        ({"run": "x" * 16385}, "run"),
        ({"workdir": "\0"}, "workdir"),
        ({"bundle": "sha256:xyz"}, "bundle"),
        ({"bundle": "md5:" + "0" * 64}, "bundle"),
        ({"env": {"A": 1}}, "env.A"),
        ({"env": {"A": "\0"}}, "env.A"),
        ({"env": {"A": "x" * 32769}}, "env.A"),
        ({"env": {"": "x"}}, "env..[key]"),
        ({"env": {"1A": "x"}}, "env.1A.[key]"),
        ({"env": {"A=B": "x"}}, "env.A=B.[key]"),
        ({"env": {"HEADWAY_ANYTHING": "x"}}, "env"),
        ({"resources": {"devices": ["A100"]}}, "resources.devices.0"),
        ({"resources": {"cpus_per_slot": 0}}, "resources.cpus_per_slot"),
        ({"resources": {"memory_per_slot": 0}}, "resources.memory_per_slot"),
        ({"resources": {"memory_per_slot": "16 gigs"}}, "resources.memory_per_slot"),
        ({"resources": {"gpus": 1}}, "resources.gpus"),
        ({"elastic": {"min": 0, "max": 1}}, "elastic.min"),
        ({"elastic": {"max": MAX_SLOTS + 1}}, "elastic.max"),
        ({"elastic": {"min": 2, "max": 1}}, "elastic"),
        ({"elastic": {"max": 4, "sizes": []}}, "elastic"),
        ({"elastic": {"min": 2, "max": 4, "sizes": [1, 8]}}, "elastic"),
        ({"elastic": {"resize": "maybe"}}, "elastic.resize"),
        ({"elastic": {"redundancy": "everyone"}}, "elastic.redundancy"),
        ({"elastic": {"partial_backprop": {"min_depth": 0}}}, "elastic.partial_backprop.min_depth"),
        ({"elastic": {"partial_backprop": {"min_depth": 1}}}, "elastic.partial_backprop.min_depth"),
        ({"elastic": {"partial_backprop": {}}}, "elastic.partial_backprop.min_depth"),
        ({"elastic": {"partial_backprop": {"min_depth": 0.5, "d": 1}}}, "elastic.partial_backprop.d"),
        ({"batch": {"global": 0}}, "batch.global"),
        ({"batch": {"max_local": 0}}, "batch.max_local"),
        ({"batch": {"policy": "big"}}, "batch.policy"),
        ({"batch": {"max_global": 8}}, "batch"),
        ({"batch": {"policy": "adaptive", "global": 8}}, "batch"),
        ({"batch": {"policy": "adaptive", "max_global": 8}}, "batch"),
        ({"batch": {"policy": "adaptive", "global": 8, "max_global": 4}}, "batch"),
        ({"batch": {"lr_rule": "magic"}}, "batch.lr_rule"),
        ({"trackers": ["wandb"]}, "trackers.0"),
        ({"trackers": "mlflow"}, "trackers"),
        ({"goal": {"objective": "fame"}}, "goal.objective"),
        ({"goal": {"max_cost_usd": 0}}, "goal.max_cost_usd"),
        ({"goal": {"deadline": "2026-12-01T00:00:00"}}, "goal.deadline"),
        ({"goal": {"deadline": "soon"}}, "goal.deadline"),
        ({"market": "black"}, "market"),
        ({"checkpoint": {"keep": 0}}, "checkpoint.keep"),
        ({"checkpoint": {"grace_s": -1}}, "checkpoint.grace_s"),
        ({"checkpoint": {"grace_s": "nan"}}, "checkpoint.grace_s"),
        ({"checkpoint": {"grace_s": float("nan")}}, "checkpoint.grace_s"),
        ({"checkpoint": {"grace_s": float("inf")}}, "checkpoint.grace_s"),
        ({"retry": {"user_errors": -1}}, "retry.user_errors"),
        ({"retry": {"infrastructure": 1001}}, "retry.infrastructure"),
        ({"priority": -1}, "priority"),
        ({"priority": 101}, "priority"),
        ({"project": "A B"}, "project"),
        ({"colour": "red"}, "colour"),
        ({"elastic": {"colour": "red"}}, "elastic.colour"),
        ({"goal": {"max_cost_usd": float("nan")}}, "goal.max_cost_usd"),
        ({"goal": {"max_cost_usd": float("inf")}}, "goal.max_cost_usd"),
        ({"resources": {"cpus_per_slot": float("nan")}}, "resources.cpus_per_slot"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], field: str) -> None:
    assert wrong_fields(**changes) == [field]


def test_partial_gradients_have_no_noise_that_a_batch_could_follow() -> None:
    adaptive = {"policy": "adaptive", "global": 8, "max_global": 64}
    assert wrong_fields(elastic={"partial_backprop": {"min_depth": 0.5}}, batch=adaptive) == [""]
    fixed = JobSpec.model_validate(
        {**OK, "elastic": {"partial_backprop": {"min_depth": 0.5}}, "batch": {"global": 8}}
    )
    assert fixed.elastic.min_depth == 0.5
    assert Elastic(partial_backprop=PartialBackprop(min_depth=0.25)).min_depth == 0.25
    assert Elastic().min_depth is None


@pytest.mark.parametrize("value", ["soon", 0, -5, "0s", 8 * 86400])
def test_a_wrong_checkpoint_interval_is_named(value: object) -> None:
    assert all(field.startswith("checkpoint.every") for field in wrong_fields(checkpoint={"every": value}))


def test_every_wrong_field_is_named_at_once() -> None:
    assert wrong_fields(name="A", priority=101, elastic={"min": 0, "max": 1}) == [
        "name",
        "elastic.min",
        "priority",
    ]


@pytest.mark.parametrize("name", sorted(RESERVED_ENV))
def test_torchruns_names_are_taken(name: str) -> None:
    with pytest.raises(ValidationError, match=f"{name}: set by Headway"):
        JobSpec.model_validate({**OK, "env": {name: "1"}})


def test_max_follows_min_when_it_is_not_given() -> None:
    assert JobSpec.model_validate({**OK, "elastic": {"min": 4}}).elastic.allowed_sizes() == (4,)


@pytest.mark.parametrize(
    ("elastic", "sizes"),
    [
        ({"min": 2, "max": 5}, (2, 3, 4, 5)),
        ({"min": 3, "max": 12, "sizes": "pow2"}, (3, 4, 8, 12)),
        ({"min": 1, "max": 1, "sizes": "pow2"}, (1,)),
        ({"min": 2, "max": 8, "sizes": [8, 1, 4, 4, 16]}, (4, 8)),
        ({"min": 4096, "max": 4096, "sizes": "pow2"}, (4096,)),
    ],
)
def test_allowed_sizes(elastic: dict[str, Any], sizes: tuple[int, ...]) -> None:
    assert Elastic.model_validate(elastic).allowed_sizes() == sizes


@given(st.integers(1, MAX_SLOTS), st.integers(1, MAX_SLOTS), st.sampled_from(["any", "pow2"]))
def test_allowed_sizes_are_ascending_and_within_bounds(one: int, other: int, sizes: str) -> None:
    low, high = sorted((one, other))
    found = Elastic.model_validate({"min": low, "max": high, "sizes": sizes}).allowed_sizes()
    assert list(found) == sorted(set(found))
    assert (found[0], found[-1]) == (low, high)


specs = st.fixed_dictionaries(
    {"name": st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True), "run": st.just("x")},
    optional={
        "priority": st.integers(0, 100),
        "checkpoint": st.fixed_dictionaries({"every": st.sampled_from(["auto", "30s", "5m", 12.5])}),
        "batch": st.fixed_dictionaries({"global": st.integers(4, 2**30)}),
        "elastic": st.fixed_dictionaries({"min": st.integers(1, 4), "max": st.integers(4, 9)}),
        "env": st.dictionaries(
            st.just("A_1"), st.text(st.characters(exclude_characters="\0", codec="utf-8"))
        ),
    },
)


@given(specs)
def test_a_spec_survives_storage(body: dict[str, Any]) -> None:
    spec = JobSpec.model_validate(body)
    assert JobSpec.model_validate_json(spec.model_dump_json(by_alias=True)) == spec
    assert JobSpec.model_validate_json(spec.model_dump_json(by_alias=True, exclude_defaults=True)) == spec


def test_a_tracker_counts_once() -> None:
    spec = JobSpec.model_validate({**OK, "trackers": ["mlflow", "tensorboard", "mlflow"]})
    assert spec.trackers == ["mlflow", "tensorboard"]


NEVER_ONE = {"resize": "never"}


@pytest.mark.parametrize(
    ("elastic", "launch", "gets"),
    [
        (NEVER_ONE, None, "plain"),
        (NEVER_ONE, "torchrun", "torchrun"),
        ({"max": 1, "resize": "restart"}, None, "torchrun"),
        ({"max": 1, "resize": "restart"}, "plain", "plain"),
        ({"min": 2, "resize": "never"}, None, "torchrun"),
        ({"min": 1, "max": 2, "resize": "never"}, None, "torchrun"),
        ({}, None, "torchrun"),
    ],
)
def test_one_process_alone_gets_no_environment_of_torchrun(
    elastic: dict[str, Any], launch: str | None, gets: str
) -> None:
    spec = JobSpec.model_validate({"name": "j", "run": "python t.py", "elastic": elastic, "launch": launch})
    assert spec.environment == gets


@pytest.mark.parametrize(
    "fields",
    [
        {"launch": "plain", "elastic": {"min": 2}},
        {"launch": "plain", "elastic": {"max": 2}},
        {"launch": "mpi"},
        {"resumes": "maybe"},
        {"progress": {"batch": "local"}},
        {"progress": {"batch": "per-rank"}, "batch": {"global": 64}},
        {"progress": {"regex": "iter"}},
        {"progress": {"regex": r"(?P<step>\d+"}},
        {"progress": {"regex": r"(?P<step>\d+)(?=a)"}},
        {"progress": {"regex": r"(?P<step>\d+)(?<!a)"}},
        {"progress": {"regex": r"(?P<step>\d+)\1"}},
        {"progress": {"regex": r"(?P<step>\d+)(?P=step)"}},
        {"progress": {"regex": r"(?P<step>\d++)"}},
        {"progress": {"regex": "(?P<step>a)" + "b" * 1000}},
    ],
)
def test_wrong_words_about_scripts_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({"name": "j", "run": "python t.py", **fields})


@pytest.mark.parametrize(
    "regex",
    [
        r"iter (?P<step>\d+).*loss (?P<loss>[\d.]+)",
        r"[*+]+(?P<step>\d+)",
        r"\*+ (?P<step>\d+)",
        r"a\\1(?P<step>x)",
    ],
)
def test_patterns_that_re2_knows_are_taken(regex: str) -> None:
    fields = {"name": "j", "run": "python t.py", "progress": {"regex": regex}}
    assert JobSpec.model_validate(fields).progress.regex == regex


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"elastic": {"max": 4, "mix": ["a100"]}}, "elastic"),
        ({"elastic": {"max": 4, "mix": ["a100", "a100"]}}, "elastic"),
        ({"elastic": {"max": 4, "mix": ["a100", "T4"]}}, "elastic.mix.1"),
        ({"elastic": {"max": 1, "mix": ["a100", "t4"]}}, "elastic"),
        ({"elastic": {"max": 4, "mix": ["a100", "t4"]}, "resources": {"devices": ["a100"]}}, ""),
        ({"batch": {"balance": "on"}}, None),
        ({"batch": {"balance": {"dead_band": 1}}}, None),
        ({"batch": {"balance": {"min_share": 1.5}}}, None),
        ({"batch": {"balance": {"max_share": 0.5}}}, None),
    ],
)
def test_a_wrong_mix_or_balance_is_named(changes: dict[str, Any], field: str | None) -> None:
    named = wrong_fields(**changes)
    assert named == [field] if field is not None else all(one.startswith("batch.balance") for one in named)


@pytest.mark.parametrize(
    ("balance", "text"),
    [
        (None, None),
        ({}, None),
        ({"dead_band": 0.05}, None),
        ("off", "off"),
        (False, "off"),  # how YAML reads a plain `off`
        ({"max_share": 2}, '{"dead_band": 0.05, "min_share": 0.0, "max_share": 2.0}'),
    ],
)
def test_ranks_get_the_rule_of_balance_as_text(balance: object, text: str | None) -> None:
    given = {} if balance is None else {"balance": balance}
    assert JobSpec.model_validate({**OK, "batch": given}).batch.balance_text == text


@pytest.mark.parametrize(
    ("mix", "slots", "most"),
    [
        ((), {"a100": 2, "t4": 3}, 3),
        (("a100", "t4"), {"a100": 2, "t4": 3}, 5),
        (("a100", "t4", "v100"), {"a100": 2, "t4": 3, "v100": 4}, 7),  # two kinds at once
        (("a100", "t4"), {"h100": 9, "t4": 3}, 9),
        (("a100", "t4"), {}, 0),
    ],
)
def test_slots_that_a_job_may_hold_at_once(mix: tuple[str, ...], slots: dict[str, int], most: int) -> None:
    assert Elastic(min=1, max=8, mix=mix).most_together(slots) == most


@pytest.mark.parametrize(
    ("parallel", "elastic", "sizes"),
    [
        ({"tp": 2}, {"min": 1, "max": 7}, (2, 4, 6)),
        ({"tp": 2, "fsdp": 2}, {"min": 4, "max": 12}, (4, 8, 12)),
        ({"tp": 3}, {"min": 1, "max": 12, "sizes": "pow2"}, (12,)),
        ({"tp": 2}, {"min": 1, "max": 9, "sizes": [3, 4, 8]}, (4, 8)),
        ({"fsdp": "auto"}, {"min": 1, "max": 3}, (1, 2, 3)),
        ({"pp": 2}, {"min": 1, "max": 4}, (2, 4)),
        ({"pp": 2, "tp": 3, "fsdp": 2}, {"min": 1, "max": 30}, (12, 24)),
    ],
)
def test_sizes_are_those_that_have_a_mesh(
    parallel: dict[str, Any], elastic: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    assert JobSpec(**OK, parallel=parallel, elastic=elastic).allowed_sizes() == sizes


@pytest.mark.parametrize("parallel", [{"tp": 2}, {"fsdp": 2}])
def test_copies_of_the_next_rank_exclude_a_mesh(parallel: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"elastic.redundancy needs a model without parallel"):
        JobSpec(**OK, parallel=parallel, elastic={"min": 2, "max": 4, "redundancy": "neighbour"})


@pytest.mark.parametrize(
    "parallel", [{"tp": 2}, {"fsdp": 3}, {"tp": 0}, {"pp": 2}, {"pp": 0}, {"fsdp": "all"}]
)
def test_a_wrong_mesh_is_refused(parallel: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"parallel"):
        JobSpec(**OK, parallel=parallel)


def test_stages_need_a_fixed_batch() -> None:
    adaptive = {"policy": "adaptive", "global": 8, "max_global": 16}
    with pytest.raises(ValidationError, match=r"parallel\.pp"):
        JobSpec(**OK, elastic={"min": 2, "max": 4}, parallel={"pp": 2}, batch=adaptive)


def test_a_batch_needs_a_sample_for_each_group_only() -> None:
    elastic = {"min": 4, "max": 4}
    assert JobSpec(**OK, elastic=elastic, parallel={"pp": 2, "tp": 2}, batch={"global": 1}).batch.global_ == 1
    assert JobSpec(**OK, elastic=elastic, parallel={"tp": 2}, batch={"global": 2}).batch.global_ == 2
    with pytest.raises(ValidationError, match=r"batch\.global"):
        JobSpec(**OK, elastic=elastic, batch={"global": 2})
