from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from headway.contract.agents import RankSlot, RunCommand, SlotInfo
from headway.contract.spec_parts import RESERVED_ENV
from worker_agent.runs.environment import base_env, rank_env, threads_per_rank, visible_devices


def command(**fields: Any) -> RunCommand:
    defaults: dict[str, Any] = {
        "command_id": "c",
        "job_id": "job",
        "job_name": "my-job",
        "generation": 7,
        "attempt": 2,
        "restart_count": 1,
        "run": "python train.py",
        "bundle": None,
        "env": {},
        "ranks": [RankSlot(rank=4, local_rank=0, slot=2), RankSlot(rank=5, local_rank=1, slot=0)],
        "world_size": 6,
        "node_rank": 1,
        "node_count": 2,
        "master_addr": "10.0.0.1",
        "master_port": 20001,
        "hosts_store": False,
        "global_batch": None,
        "checkpoint_uri": "s3://bucket/job",
        "checkpoint_every_s": None,
        "checkpoint_keep": 3,
        "grace_s": 60.0,
    }
    return RunCommand(**{**defaults, **fields})


def environment(run: RunCommand, **fields: Any) -> dict[str, str]:
    defaults: dict[str, Any] = {
        "base": {"PATH": "/bin", "HOME": "/home/me"},
        "control": Path("/state/control"),
        "devices": "",
        "threads": 1,
        "agent_keeps_store": True,
    }
    return rank_env(run, run.ranks[1], **{**defaults, **fields})


def test_every_reserved_name_is_set() -> None:
    assert set(environment(command())) >= RESERVED_ENV


def test_the_place_of_a_rank_in_the_world() -> None:
    env = environment(command())
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    assert [env[name] for name in names] == ["5", "1", "1", "6", "2", "2"]
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "20001")
    assert (env["HEADWAY_GENERATION"], env["HEADWAY_ATTEMPT"], env["HEADWAY_JOB_NAME"]) == (
        "7",
        "2",
        "my-job",
    )


def test_the_job_overrides_defaults_and_nothing_overrides_headway() -> None:
    env = environment(
        command(env={"OMP_NUM_THREADS": "8", "HOME": "/x", "RANK": "0", "HEADWAY_CONTROL": "/"})
    )
    assert (env["OMP_NUM_THREADS"], env["HOME"]) == ("8", "/x")
    assert (env["RANK"], env["HEADWAY_CONTROL"]) == ("5", "/state/control")


def test_lost_answer_of_the_name_server_costs_a_second_unless_the_job_or_the_host_says_otherwise() -> None:
    assert environment(command())["RES_OPTIONS"] == "timeout:1 attempts:3"
    assert environment(command(env={"RES_OPTIONS": "attempts:5"}))["RES_OPTIONS"] == "attempts:5"
    assert base_env({"PATH": "/bin", "RES_OPTIONS": "rotate"}, [])["RES_OPTIONS"] == "rotate"


def test_who_a_process_is_for_its_whole_life_and_whether_it_joins() -> None:
    assert environment(command())["HEADWAY_MEMBER"] == "7.5"
    assert "HEADWAY_JOINS" not in environment(command())
    assert environment(command(live=True, joins=True))["HEADWAY_JOINS"] == "1"


def test_what_is_unset_stays_unset() -> None:
    env = environment(command())
    assert "HEADWAY_GLOBAL_BATCH" not in env
    assert "HEADWAY_CHECKPOINT_EVERY_S" not in env
    env = environment(command(global_batch=512, checkpoint_every_s=30.0))
    assert (env["HEADWAY_GLOBAL_BATCH"], env["HEADWAY_CHECKPOINT_EVERY_S"]) == ("512", "30.0")


def test_what_losses_the_service_expects() -> None:
    assert "HEADWAY_LOSSES_PER_H" not in environment(command())
    losses = {"per_h": 0.25, "at": "2026-01-01T00:00:00Z"}
    assert environment(command(losses=losses))["HEADWAY_LOSSES_PER_H"] == "0.25"


def test_what_the_job_says_of_its_batches() -> None:
    names = {f"HEADWAY_{name}_BATCH" for name in ("GLOBAL", "START_GLOBAL", "MAX_GLOBAL", "MAX_LOCAL")}
    others = {"HEADWAY_LR_RULE", "HEADWAY_BALANCE", "HEADWAY_SPEEDS", "HEADWAY_BATCH_EFFECT"}
    assert not (names | others) & set(environment(command()))
    adaptive = command(
        global_batch=64, start_global_batch=128, max_global_batch=512, max_local_batch=32, lr_rule="sqrt"
    )
    env = environment(adaptive)
    assert {name: env[name] for name in names} == {
        "HEADWAY_GLOBAL_BATCH": "64",
        "HEADWAY_START_GLOBAL_BATCH": "128",
        "HEADWAY_MAX_GLOBAL_BATCH": "512",
        "HEADWAY_MAX_LOCAL_BATCH": "32",
    }
    assert env["HEADWAY_LR_RULE"] == "sqrt"
    assert environment(command(batch_effect=0.5))["HEADWAY_BATCH_EFFECT"] == "0.5"
    uneven = environment(command(balance="off", speeds=[1.0, 0.3333333333]))
    assert (uneven["HEADWAY_BALANCE"], uneven["HEADWAY_SPEEDS"]) == ("off", "1,0.333333")


def test_nothing_of_the_agent_reaches_a_rank_unless_named() -> None:
    host = {
        "PATH": "/usr/bin",
        "HOME": "/home/me",
        "LC_ALL": "C.UTF-8",
        "NCCL_SOCKET_IFNAME": "eth0",
        "HEADWAY_TOKEN": "secret",
        "HEADWAY_JOIN_TOKEN": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_PROFILE": "train",
    }
    base = base_env(host, ["AWS_PROFILE"])
    assert "secret" not in base.values()
    assert set(base) == {"PATH", "LC_ALL", "NCCL_SOCKET_IFNAME", "AWS_PROFILE"}
    assert base["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]


def test_devices_in_the_order_of_local_ranks() -> None:
    gpus = {index: SlotInfo(index=index, device_kind="a100", uuid=f"GPU-{index}") for index in range(4)}
    assert visible_devices(command(), gpus) == "GPU-2,GPU-0"
    cpus = {index: SlotInfo(index=index, device_kind="cpu") for index in range(4)}
    assert visible_devices(command(), cpus) == ""


def test_threads() -> None:
    cpus = [SlotInfo(index=index, device_kind="cpu") for index in range(4)]
    gpus = [SlotInfo(index=index, device_kind="a100") for index in range(4)]
    assert threads_per_rank({}, cpus=16, slots=cpus) == 1
    assert threads_per_rank({}, cpus=18, slots=gpus) == 4
    assert threads_per_rank({"OMP_NUM_THREADS": "3"}, cpus=16, slots=cpus) == 3
    assert threads_per_rank({"OMP_NUM_THREADS": "many"}, cpus=16, slots=cpus) == 1


def test_one_process_that_is_launched_plainly_finds_nothing_of_torchrun() -> None:
    plain, torchrun = environment(command(launch="plain")), environment(command(launch="torchrun"))
    gone = torchrun.keys() - plain.keys()
    assert {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} <= gone
    assert not any(name.startswith("HEADWAY_") for name in gone)
    assert {name: torchrun[name] for name in plain} == plain
