"""Settings of the Slurm provider, and the devices of nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.adapters.providers.slurm_cluster import devices, pilots_in, shapes_in
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


def test_nodes_of_one_shape_have_at_least_its_cores_and_memory() -> None:
    lines = [f"gpu|up|{cpus}|{memory}|gpu:a100:4" for cpus, memory in ((64, 2000), (32, 4000), (48, 3000))]
    found = shapes_in("\n".join(lines), frozenset({"gpu"}))
    assert [(one.slots, one.cpus, one.memory_bytes) for one in found.values()] == [(4, 32, 2000 << 20)]


def test_agents_trust_the_authorities_of_the_service(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("a certificate", encoding="utf-8")
    settings = read_slurm_settings(PARTITIONS | {"HEADWAY_CA_FILE": str(tmp_path / "ca.pem")})
    assert settings.authority == "a certificate"
    with pytest.raises(SettingsError, match="HEADWAY_CA_FILE"):
        read_slurm_settings(PARTITIONS | {"HEADWAY_CA_FILE": str(tmp_path)})


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
        ("HEADWAY_SLURM_WAIT_S", "61"),  # the service itself waits 90 s for a provider
        ("HEADWAY_CLUSTER", "two words"),
    ],
)
def test_wrong_setting_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read_slurm_settings(PARTITIONS | {name: value})


def test_pilots_are_found_whatever_slurm_prints_around_them() -> None:
    answer = """\
CLUSTER: hall
7|RUNNING|2026-03-10T12:00:00|2026-03-10T16:00:00|n1|headway:lab:m-1|None
8|PENDING|N/A|N/A||headway:lab:m-2|Nodes down | see ticket|4
9|RUNNING|2026-03-10T12:00:00|N/A|n2|a|headway:lab:m-3|None
10_2|RUNNING|2026-03-10T12:00:00|N/A|n3|headway:lab:m-4|None
11|RUNNING|2026-03-10T12:00:00|N/A|n4|a name of
two lines|None
12|CANCELLED|N/A|2026-03-10T12:00:00||headway:lab:m-5|None

"""
    found = pilots_in(answer, "headway:lab:")
    assert [(one.number, one.machine_id, one.reason) for one in found] == [
        ("7", "m-1", "None"),
        ("8", "m-2", "Nodes down | see ticket|4"),
    ]


def test_shapes_are_found_below_the_heading_of_a_cluster() -> None:
    found = shapes_in("CLUSTER: hall\ngpu|up|64+|1000+|gpu:a100:8\nlow|down|2|1000|(null)\n", {"gpu", "low"})
    assert [(one.instance_type, one.cpus) for one in found.values()] == [("gpu/a100:8", 64)]
