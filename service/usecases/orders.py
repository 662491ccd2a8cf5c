"""The commands that take a job from one generation to the next, and who gets them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from headway.contract import runtime
from headway.contract.agents import BatchOrder, OrderCommand, RunCommand, StopCommand
from headway.contract.spec import JobSpec
from headway.tracing import SpanRef
from service.domain.jobs import Allocation, Job
from service.domain.membership import Crew, Members, Store, nodes_of
from service.domain.ranks import NodeRanks, choose_port
from service.domain.retries import hung_limits
from service.usecases.ports import Transaction
from service.usecases.records import AllocationRecord, Bell, NodeRecord


@dataclass(frozen=True, slots=True)
class Launch:
    """What a rank needs to know of this deployment."""

    checkpoint_root: str
    """URI under which every job has a folder for its checkpoints."""


async def crew_of(tx: Transaction, job: Job) -> Crew:
    """Everybody who may speak for the job now."""
    running = await tx.allocations.get(job.id, job.generation)
    switch = job.switch
    coming = await tx.allocations.get(job.id, switch.generation) if switch is not None else None
    return Crew(
        generation=job.generation,
        running=running.members if running is not None else (),
        next_generation=switch.generation if switch is not None else None,
        coming=coming.members if coming is not None else (),
        ordered=switch is not None and switch.ordered,
    )


async def choose_ports(
    tx: Transaction, job: Job, nodes: Mapping[str, NodeRecord], generation: int
) -> dict[str, int]:
    """A port for the store of this start on each of the nodes."""
    seed = zlib.crc32(job.id.encode()) + generation
    used = await tx.allocations.ports_in_use(tuple(nodes))
    return {
        node.id: choose_port(node.first_port, node.last_port, used.get(node.id, set()), seed=seed)
        for node in nodes.values()
    }


async def send_runs(
    tx: Transaction,
    job: Job,
    record: AllocationRecord,
    parts: tuple[NodeRanks, ...],
    launch: Launch,
    now: datetime,
    *,
    address: str,
) -> None:
    """Have each node start its part of the record's generation. `address` is that of its first node."""
    spec, present = job.spec, job.progress.global_batch
    hung = hung_limits(spec.hung_after)
    runs = [
        RunCommand(
            command_id=(command_id := f"{job.id}.{record.generation}.run.{part.node_id}"),
            traceparent=command_span(job, command_id),
            job_id=job.id,
            job_name=job.name,
            generation=record.generation,
            attempt=job.attempt,
            restart_count=job.attempt - 1,
            run=spec.run,
            bundle=spec.bundle,
            env={**spec.env, **_about(spec)},
            ranks=list(part.ranks),
            world_size=len(record.members),
            node_rank=part.node_rank,
            node_count=len(nodes_of(record.members)),
            master_addr=address,
            master_port=record.master_port,
            hosts_store=part.node_id in record.stores,
            store_port=record.stores.get(part.node_id, 0),
            live=job.follows_orders,
            joins=record.generation != job.generation,
            global_batch=spec.batch.global_,
            start_global_batch=present if job.adapts and present != spec.batch.global_ else None,
            max_global_batch=spec.batch.max_global if job.adapts else None,
            max_local_batch=spec.batch.max_local,
            lr_rule=spec.batch.lr_rule if job.adapts else "none",
            checkpoint_uri=f"{launch.checkpoint_root}/{job.id}",
            checkpoint_every_s=None if spec.checkpoint.every == "auto" else spec.checkpoint.every,
            checkpoint_keep=spec.checkpoint.keep,
            grace_s=spec.checkpoint.grace_s,
            hung_after_s=None if hung is None else hung.after_s,
            hung_factor=0.0 if hung is None else hung.factor,
            hung_when_still=hung is not None and hung.when_still,
            secrets=sorted(spec.secrets),
            cpus_per_slot=spec.resources.cpus_per_slot,
            memory_per_slot_bytes=spec.resources.memory_per_slot,
            image=spec.image,
        )
        for part in parts
    ]
    await tx.commands.add([(part.node_id, run) for part, run in zip(parts, runs, strict=True)], now)
    tx.ring(Bell.COMMANDS)


def _about(spec: JobSpec) -> dict[str, str]:
    """What ranks are told of the job that their agent has no use for."""
    about = {runtime.ENV_PROJECT: spec.project}
    return {**about, runtime.ENV_TRACKERS: ",".join(spec.trackers)} if spec.trackers else about


def command_span(job: Job, command_id: str) -> str | None:
    """The span of a command, which its agent adds to."""
    trace = SpanRef.parse(job.traceparent)
    return None if trace is None else str(trace.child("command", command_id))


def batch_order(job: Job) -> BatchOrder | None:
    """What steps are to take from the next order on: what its switch is about, or as much as now. None where they always
    take as many.
    """
    if not job.adapts:
        return None
    wanted = job.switch.global_batch if job.switch is not None else None
    wanted = wanted or job.progress.global_batch
    return None if wanted is None else BatchOrder(global_batch=wanted)


async def send_order(
    tx: Transaction, job: Job, generation: int, members: Members, store: Store, *, lost: bool, now: datetime
) -> None:
    """Tell every node that has processes of the job who the members of `generation` are."""
    held = await tx.grants.held(job.id)
    running = {node for born, nodes in held.items() if born <= job.newest_generation for node in nodes}
    address = (await tx.nodes.many((store.node_id,)))[store.node_id].address
    told = sorted(running | set(nodes_of(members)))
    orders = [
        OrderCommand(
            command_id=(command_id := f"{job.id}.{generation}.order.{node_id}"),
            traceparent=command_span(job, command_id),
            job_id=job.id,
            generation=generation,
            store_addr=address,
            store_port=store.port,
            members=list(members),
            lost=lost,
            batch=batch_order(job),
        )
        for node_id in told
    ]
    await tx.commands.add(list(zip(told, orders, strict=True)), now)
    tx.ring(Bell.COMMANDS)


StopMode = Literal["checkpoint", "kill"]


async def stop_generation(
    tx: Transaction, job: Job, mode: StopMode, now: datetime, *, dump_stacks: bool = False
) -> None:
    """Ask every node that holds anything of the job to stop it, whichever start it comes from."""
    held = await tx.grants.held(job.id)
    oldest = {node: born for born in sorted(held, reverse=True) for node in held[born]}
    stops = []
    for born, nodes in held.items():
        if born <= job.newest_generation:
            for node_id in nodes:
                # The lowest one takes along whatever older the node may still run.
                down_to = 0 if born == oldest[node_id] else born
                stop = _stop(job, born, node_id, mode, oldest=down_to, dump_stacks=dump_stacks)
                stops.append((node_id, stop))
    await tx.commands.add(stops, now)
    tx.ring(Bell.COMMANDS)


async def stop_start(tx: Transaction, job: Job, generation: int, held: Allocation, now: datetime) -> None:
    """Kill the processes that were started for `generation`, on the nodes that hold slots for it, and no others."""
    kills = [(node_id, _stop(job, generation, node_id, "kill", oldest=generation)) for node_id in held]
    await tx.commands.add(kills, now)
    tx.ring(Bell.COMMANDS)


def _stop(
    job: Job, generation: int, node_id: str, mode: StopMode, *, oldest: int, dump_stacks: bool = False
) -> StopCommand:
    command_id = f"{job.id}.{generation}.stop-{mode}.{node_id}"
    return StopCommand(
        command_id=command_id,
        traceparent=command_span(job, command_id),
        job_id=job.id,
        generation=generation,
        oldest=oldest,
        mode=mode,
        grace_s=job.spec.checkpoint.grace_s,
        dump_stacks=dump_stacks,
    )
