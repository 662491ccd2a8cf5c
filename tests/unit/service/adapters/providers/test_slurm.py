"""Settings of the Slurm provider, and the devices of nodes."""

from __future__ import annotations

import pytest

from service.adapters.providers.slurm_cluster import devices
from service.adapters.providers.slurm_settings import read_slurm_settings
from service.settings import SettingsError

PARTITIONS = {"HEADWAY_SLURM_PARTITIONS": "scavenger=0.4, gpu=2"}


@pytest.mark.parametrize(
    ("gres", "cpus", "found"),
    [
        ("(null)", 16, ("cpu", 16)),
        ("gpu:8", 64, ("gpu", 8)),
        ("gpu:a100:8", 64, ("a100", 8)),
        ("gpu:H100:4(S:0-1)", 64, ("h100", 4)),
        ("gpu:a100:2(S:0,2),nvme:1", 64, ("a100", 2)),
        ("nvme:1,gpu:l4:1", 8, ("l4", 1)),
        ("gpu:1g.10gb:7", 8, ("1g.10gb", 7)),
        ("shard:4", 8, ("cpu", 8)),
    ],
)
def test_devices_of_a_node_are_its_first_gpus_or_its_cores(
    gres: str, cpus: int, found: tuple[str, int]
) -> None:
    assert devices(gres, cpus) == found


def test_settings_name_partitions_with_the_price_of_a_slot() -> None:
    settings = read_slurm_settings(PARTITIONS | {"HEADWAY_SLURM_OPTIONS": "--account='a b' --qos=low"})
    assert settings.partitions == {"scavenger": 0.4, "gpu": 2.0}
    assert settings.options == ("--account=a b", "--qos=low")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADWAY_SLURM_PARTITIONS", ""),
        ("HEADWAY_SLURM_PARTITIONS", "gpu"),
        ("HEADWAY_SLURM_PARTITIONS", "gpu=0"),
        ("HEADWAY_SLURM_PARTITIONS", "gpu=nan"),
        ("HEADWAY_SLURM_PARTITIONS", "gpu=1,gpu=2"),
        ("HEADWAY_SLURM_OPTIONS", "--nodes=2"),
        ("HEADWAY_SLURM_OPTIONS", "-N2"),
        ("HEADWAY_SLURM_OPTIONS", "--account ml"),
        ("HEADWAY_SLURM_OPTIONS", "--comment='open"),
        ("HEADWAY_SLURM_SETUP", "/absent/setup.sh"),
        ("HEADWAY_SLURM_WAIT_S", "0"),
        ("HEADWAY_CLUSTER", "two words"),
    ],
)
def test_wrong_setting_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read_slurm_settings(PARTITIONS | {name: value})
