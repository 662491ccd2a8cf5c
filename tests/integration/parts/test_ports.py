"""Ports that an agent claims, and its address towards a service."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from tests.unit.worker_agent.host.test_host import ARGUMENTS
from worker_agent.host import ports
from worker_agent.host.folders import StateFolder
from worker_agent.host.identity import identify
from worker_agent.host.network import interface_env, own_address
from worker_agent.host.ports import Ports
from worker_agent.options import parse


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
    first = identify(state, "a", None)
    with pytest.raises(HeadwayError, match="--state-dir"):
        identify(state, "a", None)
    first.release()
    second = identify(state, "a", None)
    assert (second.instance, second.ports) == (first.instance, first.ports)
    second.release()
    named = identify(state, "a", Ports(25000, 25010))
    assert (named.instance, named.ports) == (first.instance, Ports(25000, 25010))
    named.release()


def test_folder_of_an_agent_of_another_name_is_refused_while_its_ranks_run(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    state.make()
    identify(state, "a", None).release()
    run = state.run("job/1")
    run.path.mkdir(parents=True)
    run.started.write_text("{}")
    with pytest.raises(HeadwayError, match="belongs to the agent a") as refused:
        identify(state, "b", None)
    assert "headway drain a" in refused.value.hint
    identify(state, "a", None).release()
    run.gone.touch()
    renamed = identify(state, "b", None)
    renamed.release()
    run.gone.unlink()
    with pytest.raises(HeadwayError, match="belongs to the agent b"):
        identify(state, "a", None)


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


def test_the_address_on_the_route_has_the_family_of_the_service() -> None:
    assert own_address("http://127.0.0.1:8123") == "127.0.0.1"
    assert own_address("http://[::1]:8123") == "::1"


def test_without_a_route_the_name_stands_for_the_address() -> None:
    assert own_address("http://no-such-host.invalid") == socket.gethostname()


def test_behind_nat_ranks_use_the_interface_on_the_route_to_the_service() -> None:
    expected = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    assert interface_env("192.0.2.1", "http://127.0.0.1:8123") == expected
