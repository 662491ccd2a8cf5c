"""Facts that an agent finds out about its host, and those that it is told."""

from __future__ import annotations

import pytest

from headway.contract.values.devices import KNOWN_DEVICE_KINDS, kind_name
from headway.errors import HeadwayError
from worker_agent.devices.inventory import find_slots
from worker_agent.options import parse

ARGUMENTS = ["--url", "http://127.0.0.1:8123", "--token", "t", "--name", "n"]


@pytest.mark.parametrize(
    ("product", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
        ("NVIDIA RTX A6000", "rtxa6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("NVIDIA TITAN RTX", "titanrtx"),
    ],
)
def test_the_kind_of_a_product(product: str, kind: str) -> None:
    assert kind_name(product) == kind
    assert kind in KNOWN_DEVICE_KINDS


def test_an_unknown_product_still_has_a_kind() -> None:
    assert kind_name("NVIDIA") == "gpu"
    assert kind_name("Acme Über-Chip 9000!") == "acmeberchip9000"


def test_cpu_slots_and_gpus_that_are_not_there() -> None:
    slots = find_slots(3, "cpu")
    assert [(slot.index, slot.device_kind, slot.uuid) for slot in slots] == [
        (i, "cpu", None) for i in range(3)
    ]
    with pytest.raises(HeadwayError, match="--device-kind cpu"):
        find_slots(None, "no-such-gpu")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--slots", "0"], "positive"),
        (["--name", "Not Good"], "lower-case"),
        (["--ports", "9-10"], "range of ports"),
        (["--ports", "30000"], "range of ports"),
        (["--device-kind", "A 100"], "device kind"),
        (["--umask", "777"], "owner"),
        (["--umask", "29"], "022"),
        (["--url", ""], "--url (or HEADWAY_URL) is missing"),
        (["--token", ""], "--token"),
    ],
)
def test_wrong_usage_is_explained(extra: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse([*ARGUMENTS, *extra], {})
    assert message in capsys.readouterr().err


def test_umask_of_ranks_is_read_as_octal() -> None:
    arguments = [*ARGUMENTS, "--address", "127.0.0.1"]
    assert parse([*arguments, "--umask", "027"], {}).umask == 0o027
    assert parse(arguments, {"HEADWAY_UMASK": "002"}).umask == 0o002
    assert parse(arguments, {}).umask is None
