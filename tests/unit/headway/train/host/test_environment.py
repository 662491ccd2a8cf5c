from __future__ import annotations

from pathlib import Path

import pytest

from headway.contract.orders import Order
from headway.contract.values.balance import BalanceRule
from headway.contract.values.meshes import MeshShape
from headway.train.host.environment import Environment


def test_a_script_started_by_hand_is_alone() -> None:
    assert Environment.read({"PATH": "/bin"}) == Environment()


def test_a_rank_of_a_job() -> None:
    told = Environment.read(
        {
            "RANK": "3",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "4",
            "HEADWAY_GENERATION": "7",
            "HEADWAY_CONTROL": "/run/control",
            "HEADWAY_CHECKPOINT_URI": "s3://bucket/job",
            "HEADWAY_CHECKPOINT_EVERY_S": "2.5",
            "HEADWAY_CHECKPOINT_KEEP": "5",
            "HEADWAY_LOSSES_PER_H": "0.125",
            "HEADWAY_GLOBAL_BATCH": "512",
            "HEADWAY_START_GLOBAL_BATCH": "768",
            "HEADWAY_BATCH_EFFECT": "0.5",
            "HEADWAY_MAX_GLOBAL_BATCH": "1024",
            "HEADWAY_MAX_LOCAL_BATCH": "64",
            "HEADWAY_LR_RULE": "adascale",
            "HEADWAY_BALANCE": '{"min_share": 0.25}',
            "HEADWAY_SPEEDS": "4,4,1,1",
            "HEADWAY_MESH": "fsdp=2,tp=2",
            "HEADWAY_REDUNDANCY": "neighbour",
            "HEADWAY_AUDIT": "none",
            "HEADWAY_JOINS": "1",
            "MASTER_ADDR": "10.0.0.7",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    )
    assert told == Environment(
        distributed=True,
        rank=3,
        world_size=4,
        local_rank=1,
        generation=7,
        control=Path("/run/control"),
        checkpoint_uri="s3://bucket/job",
        checkpoint_every_s=2.5,
        checkpoint_keep=5,
        losses_per_h=0.125,
        global_batch=512,
        start_global_batch=768,
        batch_effect=0.5,
        most_global_batch=1024,
        max_local_batch=64,
        lr_rule="adascale",
        balance=BalanceRule(min_share=0.25),
        speeds=(4.0, 4.0, 1.0, 1.0),
        mesh=MeshShape(fsdp=2, tp=2),
        redundant=True,
        audits=False,
        joins=True,
        store="10.0.0.7:29500",
    )
    assert told.live


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "-1"),
        ("WORLD_SIZE", "0"),
        ("HEADWAY_GENERATION", "two"),
        ("HEADWAY_GLOBAL_BATCH", "0"),
        ("HEADWAY_CHECKPOINT_EVERY_S", "0"),
        ("HEADWAY_CHECKPOINT_EVERY_S", "nan"),
        ("HEADWAY_CHECKPOINT_EVERY_S", "auto"),
        ("HEADWAY_CHECKPOINT_KEEP", "0"),
        ("HEADWAY_MESH", "tp=0"),
        ("HEADWAY_MIN_DEPTH", "0"),
        ("HEADWAY_MIN_DEPTH", "1"),
        ("HEADWAY_MIN_DEPTH", "nan"),
        ("HEADWAY_MIN_DEPTH", "half"),
        ("HEADWAY_LOSSES_PER_H", "-0.1"),
        ("HEADWAY_LOSSES_PER_H", "nan"),
        ("HEADWAY_LOSSES_PER_H", "inf"),
        ("HEADWAY_LOSSES_PER_H", "few"),
        ("HEADWAY_START_GLOBAL_BATCH", "0"),
        ("HEADWAY_BATCH_EFFECT", "-1"),
        ("HEADWAY_BATCH_EFFECT", "nan"),
        ("HEADWAY_BATCH_EFFECT", "much"),
        ("HEADWAY_MAX_GLOBAL_BATCH", "-1"),
        ("HEADWAY_MAX_LOCAL_BATCH", "1.5"),
        ("HEADWAY_LR_RULE", "cubic"),
        ("HEADWAY_REDUNDANCY", "everyone"),
        ("HEADWAY_AUDIT", "everything"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is '{value}'"):
        Environment.read({name: value})


AGENT = {
    "HEADWAY_CONTROL": "/run/control",
    "MASTER_ADDR": "10.0.0.7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


@pytest.mark.parametrize("missing", sorted(AGENT.keys() - {"MASTER_ADDR"}))
def test_only_an_agent_that_keeps_a_store_can_change_the_members(missing: str) -> None:
    """torchrun sets its variables as well, but nobody gives orders there."""
    assert Environment.read(AGENT).live
    told = Environment.read({name: value for name, value in AGENT.items() if name != missing})
    assert not told.live
    assert told.store is None


def test_the_store_of_another_rank_is_not_the_agent_s() -> None:
    assert Environment.read({**AGENT, "TORCHELASTIC_USE_AGENT_STORE": "False"}).store is None


@pytest.mark.parametrize(("text", "joins"), [("1", True), ("0", False), ("", False), ("yes", False)])
def test_only_a_newcomer_joins(text: str, joins: bool) -> None:
    assert Environment.read({**AGENT, "HEADWAY_JOINS": text}).joins == joins


def test_a_rank_learns_how_deep_it_must_go() -> None:
    assert Environment.read({"HEADWAY_MIN_DEPTH": "0.25"}).min_depth == 0.25
    assert Environment.read({"HEADWAY_MIN_DEPTH": ""}).min_depth is None


@pytest.mark.parametrize("rule", ["auto", "none", "linear", "sqrt", "adascale"])
def test_every_rule_of_a_job_file_is_known(rule: str) -> None:
    assert Environment.read({"HEADWAY_LR_RULE": rule}).lr_rule == rule


def test_what_is_set_to_nothing_is_as_if_unset() -> None:
    names = (
        "GLOBAL_BATCH",
        "MAX_GLOBAL_BATCH",
        "MAX_LOCAL_BATCH",
        "LR_RULE",
        "CHECKPOINT_URI",
        "CHECKPOINT_EVERY_S",
    )
    assert Environment.read({f"HEADWAY_{name}": "" for name in names}) == Environment()


def test_the_first_order_names_those_who_were_started() -> None:
    told = Environment.read({**AGENT, "RANK": "1", "WORLD_SIZE": "3", "HEADWAY_GENERATION": "4"})
    assert told.first_order == Order(
        generation=4, world_size=3, store="10.0.0.7:29500", members={"4.0": 0, "4.1": 1, "4.2": 2}
    )


def test_stop_is_announced_by_a_file_where_the_host_signals_ranks_too(tmp_path: Path) -> None:
    control = {"HEADWAY_CONTROL": str(tmp_path)}
    read = [
        Environment.read(env).stop_announcement
        for env in ({}, control, control | {"HEADWAY_HOST_SIGNALS": "1"})
    ]
    assert read == [None, None, tmp_path / "stop.json"]
