"""One of every message that crosses a process boundary, each with all of its fields: what `golden/` is written from.

    python -m tests.unit.headway.contract.examples VERSION

writes the files of a version before it is released.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from headway.contract import (
    agents,
    credentials,
    executions,
    health,
    isolation,
    links,
    orders,
    output,
    rank_lines,
    run_facts,
    runtime,
)
from headway.contract.changes import ChangeKind, ChangeReason
from headway.contract.values.meshes import MeshShape
from worker_agent.launcher import protocol

GOLDEN = Path(__file__).parent / "golden"
_AT = datetime(2026, 11, 21, 12, 0, 0, 500_000, UTC)
_JOB: dict[str, Any] = {"job_id": "j01arz3ndek", "generation": 7}
_ENTRY: dict[str, Any] = {**_JOB, "sequence": 1_700_000_000_000_001, "at": _AT}
_SLOT = agents.SlotInfo(
    index=3,
    device_kind="h100",
    memory_bytes=85_899_345_920,
    uuid="GPU-1b2c",
    health=health.DeviceHealth(temperature_c=61, memory_used_bytes=1 << 30, ecc_uncorrected=0),
)
_MEMBER = agents.Member(
    rank=0, node_id="n01", slot=3, born_generation=5, born_rank=1, device_kind="a100", speed=4.0
)
_TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_WHY = ChangeReason(ChangeKind.DRAIN, "node-1 is draining")
_SAID = {"rank": 1, "generation": 7, "at_s": 1_763_726_400.25}

COMMANDS: tuple[BaseModel, ...] = (
    agents.RunCommand(
        **_JOB, command_id="c1", job_name="gpt", attempt=2, restart_count=1, run="python train.py",
        bundle="sha256:" + "0" * 64, env={"A": "b"}, ranks=[agents.RankSlot(rank=1, local_rank=0, slot=3)],
        world_size=4, node_rank=1, node_count=2, master_addr="10.0.0.1", master_port=20001, hosts_store=True,
        store_port=20002, live=True, joins=True, global_batch=256, start_global_batch=512, max_global_batch=1024,
        max_local_batch=64, lr_rule="sqrt", balance='{"dead_band": 0.1}', speeds=[4.0, 1.0], checkpoint_uri="s3://bucket/checkpoints/j", checkpoint_every_s=30.0,
        checkpoint_keep=3, losses=run_facts.LossRate(per_h=0.25, at=_AT), grace_s=60.0, hung_after_s=600.0, hung_factor=10.0, hung_when_still=True,
        secrets=["WANDB_API_KEY"], traceparent=_TRACEPARENT,
        cpus_per_slot=4.0, memory_per_slot_bytes=1 << 34, image="registry.example/train:1", requirements="requirements.txt", lock="uv.lock",
        output=output.OutputPlan(dir=".", as_cwd=True, every_s=60.0, max_bytes=1 << 40),
    ),
    agents.OrderCommand(
        **_JOB, command_id="c2", store_addr="10.0.0.1", store_port=20002, members=[_MEMBER], lost=True, mesh="fsdp=2,tp=2",
        batch=agents.BatchOrder(global_batch=512), losses=run_facts.LossRate(per_h=0.25, at=_AT),
        why=_WHY, traceparent=_TRACEPARENT,
    ),
    agents.StopCommand(
        **_JOB, command_id="c3", oldest=5, mode="checkpoint", grace_s=60.0, dump_stacks=True, why=_WHY,
        traceparent=_TRACEPARENT,
    ),
    agents.ExecCommand(
        **_JOB, command_id="c4", rank=1, execution="x01arz", argv=["nvidia-smi", "-L"], timeout_s=90.0, traceparent=_TRACEPARENT,
        stdin=True, terminal=executions.Terminal(rows=50, columns=132, term="xterm-256color"),
    ),
    agents.ExecInput(
        **_JOB, command_id="c5", execution="x01arz",
        chunk=executions.ExecutionInput(
            sequence=3, data=b"\xff\x00ls\n", eof=True, size=executions.TerminalSize(rows=50, columns=132)
        ),
    ),
)  # fmt: skip

ENTRIES: tuple[BaseModel, ...] = (
    agents.RanksStarted(**_ENTRY, how="zygote"),
    agents.RankExited(
        **_ENTRY,
        rank=1,
        exit_code=1,
        signal=None,
        stopped_by_agent=True,
        completed=True,
        log_tail=["Error: x"],
    ),
    agents.StartFailed(**_ENTRY, message="no such command", retryable=True),
    agents.Released(**_ENTRY, slots=[3]),
    agents.RankMessage(**_ENTRY, rank=1, message={"type": "hello", **_SAID}),
    agents.RanksHung(**_ENTRY, silent_s=600.0, usual_s=0.5, stacks=["Thread 1"]),
    agents.OutputReport(
        **_ENTRY,
        what="saved",
        message="",
        paths=["snapshot.pt"],
        files=1,
        size_bytes=8,
        moved_bytes=8,
        last=True,
    ),
    agents.InterruptionNotice(
        sequence=1, at=_AT, what=agents.InterruptionKind.TERMINATE, action="terminate", reclaim_at=_AT
    ),
    health.DeviceFault(
        sequence=2, at=_AT, slot=3, cause=health.FaultCause.XID, code=79, message="fell off the bus"
    ),
    health.DeviceProbed(sequence=3, at=_AT, slot=3, healthy=True, message="well"),
    links.LinksProbed(
        sequence=4,
        at=_AT,
        clock_ahead_s=0.5,
        pairs=[
            links.LinkProbe(
                peer="n02",
                address="10.0.0.2",
                port=20063,
                failure="node-a cannot reach 10.0.0.2:20063: no answer",
                connect_s=0.001,
                bytes_per_s=1e9,
            )
        ],
    ),
)

HTTP: tuple[BaseModel, ...] = (
    agents.JoinRequest(
        name="node-a", instance="0123456789abcdef", address="10.0.0.1", first_port=20000, last_port=20063,
        slots=[_SLOT], agent_version="0.1.0", cpus=64, memory_bytes=1 << 40,
        container_engine="docker", labels={"rack": "r7", "zone": "a"},
        host=links.HostFacts(
            probe_port=20063, probe_key="key", interface="eth0", mtu=9000, shm_bytes=1 << 30, open_files=65536,
            locked_memory_bytes=1 << 20, driver="580.1", nccl="2.27.3", executes=True, executes_with_input=True, kill_wait_s=30.0,
            isolation=isolation.IsolationFacts(
                mode="landlock",
                results={"kernel": isolation.ProbeResult(probes=47, open=["keyctl"])},
            ),
        ),
    ),
    agents.JoinReply(
        node_id="n01", node_token="secret", redis_url="redis://r:6379/0", stream="headway:node:n01:commands",
        lease_s=300.0, report_every_s=3.0, renew_credentials_s=86_400.0,
    ),
    credentials.NodeCredentials(node_token="secret", redis_url="redis://n01:secret@r:6379/0"),
    credentials.StorageRequest(**_JOB),
    credentials.StorageAccess(
        credentials=credentials.StorageCredentials(
            uri="s3://bucket/checkpoints/j01arz3ndek", endpoint_url="https://store:9000", region="eu-1",
            access_key_id="key", secret_access_key="secret", session_token="token", expires_at=_AT,
        ),
        ticket=credentials.StorageTicket(uri="s3://bucket/checkpoints/j01arz3ndek", ticket="ticket", expires_at=_AT),
    ),
    credentials.SignRequest(
        calls=[
            credentials.StorageCall(do="list"),
            credentials.StorageCall(do="part", key="step/0-0.safetensors", upload_id="u1", part=1),
        ]
    ),
    credentials.SignReply(urls=["https://store:9000/bucket/key?X-Amz-Signature=signature"], expires_at=_AT),
    agents.ReportRequest(
        instance="0123456789abcdef", acknowledged=["c1"], entries=[], holding=[agents.Holding(**_JOB)], slots=[_SLOT]
    ),
    agents.ReportReply(
        lease_s=300.0, stop=[agents.Holding(**_JOB)], probe=[3], report_every_s=5.0,
        reach=[links.PeerProbe(peer="n02", address="10.0.0.2", port=20063, nonce=1, size_bytes=65536, token="t")],
    ),
    executions.ExecutionReport(
        **_JOB, claim="0123456789abcdef", sequence=2, parts=[executions.OutputPart(stream="stderr", data=b"\xff\x00oops\n")],
        end=executions.ExecutionEnd(
            outcome=executions.ExecutionOutcome.EXITED, exit_code=7, signal=9, message="The command ran for 90 s.",
        ),
        taken=7,
    ),
    executions.ExecutionReply(cancelled=True, hold=True),
    credentials.SecretsRequest(**_JOB),
    credentials.SecretsReply(env={"WANDB_API_KEY": SecretStr("value")}),
)  # fmt: skip

RANK_MESSAGES: tuple[runtime.Message, ...] = (
    runtime.Hello(**_SAID),
    runtime.FirstStep(**_SAID, samples=64, live=True, plain=True),
    runtime.Stepped(**_SAID, step=640, total=6400, values={"loss": 0.5}),
    runtime.Ready(**_SAID, ready_s=1.5),
    runtime.CannotMeet(**_SAID, meeting=8, why="host-a cannot reach 10.0.0.2:41000: no answer"),
    runtime.Switched(**_SAID, samples=640, world_size=4, pause_s=0.04, lost_steps=1, sync_bytes=1 << 20),
    runtime.Left(**_SAID, samples=640, joined=8),
    runtime.Progress(
        **_SAID, epoch=1, samples=640, total_samples=6400, steps=10, step_s_sum=1.5, step_s_squares=0.25,
        global_batch=64, local_batch=16, accumulation=2, sync_s_sum=0.1, local_batches=(16, 16, 16, 16),
        gradient_sqr=0.5, gradient_var=2.5, max_global_batch=128, lr_rule="sqrt", train_step=10, train_steps=100, draws=True,
        shards=3, repeated_samples=7, repeated_shards=1,
    ),
    runtime.BatchChanged(**_SAID, samples=640, global_batch=128, lr_factor=1.4, cause="order"),
    runtime.Metrics(**_SAID, epoch=1, samples=640, values={"loss": 0.5}),
    runtime.Checkpointed(**_SAID, uri="s3://bucket/x", samples=640, size_bytes=1 << 20, save_s=0.1, total_s=2.0, every_s=90.0),
    runtime.CheckpointFailed(**_SAID, samples=640, why="the disk is full"),
    runtime.EpochClosed(**_SAID, epoch=1, samples_seen=640, dataset_samples=640, exactly_once=True, exact_so_far=1),
    runtime.Restored(**_SAID, samples=640, from_generation=6),
    runtime.StandsStill(**_SAID, silent_s=42.0, usual_s=0.3, unanswered=("10.0.0.2",), over=True),
    runtime.Warned(**_SAID, code="GRADIENTS_LOST", text="the gradients of 3 batches are lost"),
    runtime.Stopped(**_SAID, samples=640),
    runtime.Completed(**_SAID, samples=6400),
    runtime.Lingers(**_SAID, ended_s=5.0, within_s=600.0, exit_code=0, waits_for=("thread uploader",), over=True),
)  # fmt: skip

ORDER = orders.Order(
    generation=7, world_size=2, store="10.0.0.1:20002", members={"5.1": 0, "7.0": 1}, lost=True,
    batch=orders.BatchPlan(global_batch=512), speeds=(4.0, 1.0), mesh=MeshShape(fsdp=2),
)  # fmt: skip

LAUNCHER: tuple[protocol.Message, ...] = (
    protocol.Hello(),
    protocol.Start("j01/7", secrets=True),
    protocol.Terminate("j01/7"),
    protocol.Kill("j01/7"),
    protocol.Execute("j01/7", 1, "x01arz", ("nvidia-smi", "-L"), secrets=True),
    protocol.EndCommand("x01arz"),
    protocol.Lease(1234.5),
    protocol.Shutdown(),
    protocol.Welcome("abcdef", hosts_stores=True, runs=("j01/7",)),
    protocol.Started("j01/7", "spawn", "no such command", retryable=True),
    protocol.Changed("j01/7"),
)
PLAN = protocol.LaunchPlan(
    argv=("python", "train.py"), how="zygote", cwd="/work", threads=2, store_host="10.0.0.1", store_port=20002,
    node_count=2, live=True, ranks={1: {"RANK": "1"}},
)  # fmt: skip


def everything() -> Mapping[str, Any]:
    """Plain values by the name of their file."""
    files: dict[str, Any] = {}
    for folder, models in (("commands", COMMANDS), ("entries", ENTRIES)):
        files |= {f"{folder}/{model.kind}": model.model_dump(mode="json") for model in models}  # type: ignore[attr-defined]
    files |= {f"http/{type(model).__name__}": model.model_dump(mode="json") for model in HTTP}
    files |= {f"ranks/{one.TYPE}": json.loads(rank_lines.to_line(one)) for one in RANK_MESSAGES}
    launcher = [json.loads(protocol.encode(one)) for one in LAUNCHER]
    files |= {f"launcher/{fields['type']}": fields for fields in launcher}
    return {**files, "launcher/plan": PLAN.to_json(), "order": asdict(ORDER)}


def write(version: str) -> None:
    """Freeze what this version says, in files that stay as they are."""
    for name, value in everything().items():
        file = GOLDEN / version / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write(sys.argv[1])
