from __future__ import annotations

from pathlib import Path

import pytest

from headway.train.environment import Environment


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
            "HEADWAY_GLOBAL_BATCH": "512",
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
        global_batch=512,
    )


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
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is '{value}'"):
        Environment.read({name: value})
