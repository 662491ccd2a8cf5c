"""What an agent finds out about its host, and what it is told."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from headway.contract.devices import KNOWN_DEVICE_KINDS
from headway.errors import HeadwayError
from worker_agent import ports
from worker_agent.folders import StateFolder
from worker_agent.identity import identify
from worker_agent.inventory import find_slots, kind_name
from worker_agent.options import own_address, parse
from worker_agent.ports import Ports

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


def test_a_block_of_ports_is_claimed_once() -> None:
    block, claim = ports.choose(random.Random(1))
    with claim:
        assert block.last - block.first == ports.BLOCK - 1
        assert ports.claim(block) is None
        other, other_claim = ports.choose(random.Random(1))
        other_claim.close()
        assert other != block
    again = ports.claim(block)
    assert again is not None
    again.close()


def test_a_block_with_a_used_port_is_not_chosen() -> None:
    block, claim = ports.choose(random.Random(2))
    claim.close()
    with socket.create_server(("127.0.0.1", block.first + 5)):
        other, claim = ports.choose(random.Random(2))
        claim.close()
    assert other != block


def test_an_agent_keeps_its_identity(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    state.make()
    first = identify(state, None)
    with pytest.raises(HeadwayError, match="--state-dir"):
        identify(state, None)
    first.release()
    second = identify(state, None)
    assert (second.instance, second.ports) == (first.instance, first.ports)
    second.release()
    named = identify(state, Ports(25000, 25010))
    assert (named.instance, named.ports) == (first.instance, Ports(25000, 25010))
    named.release()


def test_options_from_arguments_and_environment() -> None:
    options = parse([*ARGUMENTS, "--ports", "20000-20063", "--pass-env", "A,B", "--slots", "2"], {})
    assert (options.ports, options.pass_env, options.slots, options.own_jobs) == (
        Ports(20000, 20063),
        ("A", "B"),
        2,
        False,
    )
    assert options.address == "127.0.0.1"
    assert options.state_dir.name == "n"
    env = {"HEADWAY_URL": "http://localhost:1", "HEADWAY_JOIN_TOKEN": "t", "XDG_STATE_HOME": "/var/lib"}
    options = parse(["--name", "n"], env)
    assert (options.url, options.token) == ("http://localhost:1", "t")
    assert options.state_dir == Path("/var/lib/headway/agents/n")
    assert parse([*ARGUMENTS, "--state-dir", "/srv/agent"], {}).state_dir == Path("/srv/agent")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--slots", "0"], "positive"),
        (["--name", "Not Good"], "lower-case"),
        (["--ports", "9-10"], "range of ports"),
        (["--ports", "30000"], "range of ports"),
        (["--device-kind", "A 100"], "device kind"),
        (["--url", ""], "where is the service"),
        (["--token", ""], "--token"),
    ],
)
def test_wrong_usage_is_explained(extra: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse([*ARGUMENTS, *extra], {})
    assert message in capsys.readouterr().err


def test_the_own_address_towards_a_local_service() -> None:
    assert own_address("http://127.0.0.1:8123") == "127.0.0.1"
