"""Commands that take a job from one generation to the next, and their recipients."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from typing import Literal, TypeAlias

from headway.contract import runtime
from headway.contract.agents import BatchOrder, OrderCommand, RunCommand, StopCommand
from headway.contract.changes import ChangeReason
from headway.contract.output import OutputHandover, OutputPlan
from headway.contract.spec import JobSpec
from headway.contract.spec_parameters import variables_of
from headway.tracing import SpanRef
from service.domain.jobs.hung import hung_limits
from service.domain.jobs.job import Job
from service.domain.jobs.membership import Members, Store, nodes_of, ranks_left
from service.domain.jobs.ranks import NodeRanks, choose_port
from service.domain.jobs.records import AllocationRecord
from service.domain.life.change_reasons import change_reason
from service.domain.life.effects import SendCommands
from service.domain.life.expected_losses import losses_of_members, with_losses
from service.domain.life.life import Life

StopMode: TypeAlias = Literal["checkpoint", "kill"]


def choose_ports(life: Life, node_ids: Iterable[str], generation: int) -> dict[str, int]:
    """Return a port for the store of this start on each of the nodes."""
    seed = zlib.crc32(life.job.id.encode()) + generation
    hosts = [life.loaded_footprint.hosts[node_id] for node_id in node_ids]
    used = life.loaded_footprint.ports_in_use
    return {
        host.id: choose_port(host.first_port, host.last_port, used.get(host.id, ()), seed=seed)
        for host in hosts
    }


def send_runs(life: Life, record: AllocationRecord, parts: tuple[NodeRanks, ...], store_node: str) -> Life:
    """Have each node start its part of the record's generation, which meets at the store of `store_node`."""
    address = life.loaded_footprint.hosts[store_node].address
    if record.generation == life.job.generation:
        life = with_losses(life, losses_of_members(life, record.members))
    runs = [(part.node_id, _run(life, record, part, address)) for part in parts]
    return life.having(SendCommands(tuple(runs)))


def _run(life: Life, record: AllocationRecord, part: NodeRanks, address: str) -> RunCommand:
    job, spec, batch = life.job, life.job.spec, _next_batch(life.job)
    hung = hung_limits(spec.hung_after)
    command_id = f"{job.id}.{record.generation}.run.{part.node_id}"
    return RunCommand(
        command_id=command_id,
        traceparent=_span(job, command_id),
        job_id=job.id,
        job_name=job.name,
        generation=record.generation,
        attempt=job.attempt,
        restart_count=job.attempt - 1,
        run=spec.run,
        bundle=spec.bundle,
        env={
            **spec.env,
            **variables_of(spec.parameters),
            **_about(spec),
            **_mesh_of(job, record.generation),
            **_to_reach(life, record),
        },
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
        start_global_batch=None if batch == spec.batch.global_ else batch,
        batch_effect=next_effect(job) if job.adapts else 1.0,
        max_global_batch=spec.batch.max_global if job.adapts else None,
        max_local_batch=spec.batch.max_local,
        lr_rule=spec.batch.lr_rule if job.adapts else "none",
        balance=spec.batch.balance_text,
        speeds=_speeds(record.members),
        checkpoint_uri=f"{life.launch.checkpoint_root}/{job.id}",
        checkpoint_name=job.progress.checkpoint_name,
        checkpoint_every_s=None if spec.checkpoint.every == "auto" else spec.checkpoint.every,
        checkpoint_keep=spec.checkpoint.keep,
        losses=losses_of_members(life, record.members),
        grace_s=spec.checkpoint.grace_s,
        launch=spec.environment.value,
        progress_regex=spec.progress.regex,
        progress_batch=spec.progress.batch,
        progress_total=spec.progress.total,
        hung_after_s=None if hung is None else hung.after_s,
        hung_factor=0.0 if hung is None else hung.factor,
        hung_when_still=hung is not None and hung.when_still,
        output=_output_plan(spec),
        after=[one.job for one in spec.after if one.files],
        secrets=sorted(spec.secrets),
        cpus_per_slot=spec.resources.cpus_per_slot,
        memory_per_slot_bytes=spec.resources.memory_per_slot,
        image=spec.image,
        requirements=spec.python.requirements,
        lock=spec.python.lock,
    )


def _speeds(members: Members) -> list[float]:
    """Return the expected relative speeds by rank; none if they are equal."""
    speeds = [one.speed for one in members]
    return speeds if len(set(speeds)) > 1 else []


def _output_plan(spec: JobSpec) -> OutputPlan:
    chosen = spec.output
    return OutputPlan(dir=chosen.dir, as_cwd=chosen.as_cwd, every_s=chosen.every, max_bytes=chosen.max_size)


def _about(spec: JobSpec) -> dict[str, str]:
    """Return environment variables about the job that only the ranks need, not their agent."""
    about = {runtime.ENV_PROJECT: spec.project, runtime.ENV_EXIT_WITHIN_S: f"{spec.exit_within:g}"}
    if spec.trackers:
        about[runtime.ENV_TRACKERS] = ",".join(spec.trackers)
    if spec.elastic.min_depth is not None:
        about[runtime.ENV_MIN_DEPTH] = str(spec.elastic.min_depth)
    if not spec.audits:
        about[runtime.ENV_AUDIT] = "none"
    if spec.audits_near:
        about[runtime.ENV_AUDIT_NEAR] = "1"
    if spec.elastic.redundant:
        about[runtime.ENV_REDUNDANCY] = spec.elastic.redundancy
    return about


def _to_reach(life: Life, record: AllocationRecord) -> dict[str, str]:
    """Return the environment variable with the stores that new ranks must reach; none for a start."""
    hosts, ports = life.loaded_footprint.hosts, life.loaded_footprint.stores
    old = [one for one in record.members if one.born_generation != record.generation]
    kept = [(one.node_id, ports.get((one.node_id, one.born_generation))) for one in old]
    stores = dict.fromkeys(f"{hosts[node].address}:{port}" for node, port in kept if port is not None)
    return {runtime.ENV_REACH: ",".join(stores)} if stores else {}


def _mesh_of(job: Job, generation: int) -> dict[str, str]:
    """Return the environment variable with the mesh of a generation; none for a job that is not sharded."""
    mesh = _next_mesh(job) if generation != job.generation else job.progress.mesh
    return {} if mesh is None else {runtime.ENV_MESH: mesh}


def _next_mesh(job: Job) -> str | None:
    """Return the mesh of the next generation: the one that its switch brings, or else the present one."""
    return job.progress.mesh if job.switch is None else job.switch.mesh


def _span(job: Job, command_id: str) -> str | None:
    """Return the trace span of a command, to which its agent adds."""
    trace = SpanRef.parse(job.traceparent)
    return None if trace is None else str(trace.child("command", command_id))


def send_order(life: Life, generation: int, members: Members, store: Store, *, lost: bool) -> Life:
    """Send the members of `generation` to every node that has processes of the job."""
    life = with_losses(life, losses_of_members(life, members))
    job, held = life.job, life.loaded_footprint.held
    running = {node for born, nodes in held.items() if born <= job.newest_generation for node in nodes}
    recipients = sorted(running | set(nodes_of(members)))
    handovers = _handovers(life.running, members, running)
    why = _reason_of(life.generations.get(generation))
    orders = [
        OrderCommand(
            command_id=(command_id := f"{job.id}.{generation}.order.{node_id}"),
            traceparent=_span(job, command_id),
            job_id=job.id,
            generation=generation,
            store_addr=life.loaded_footprint.hosts[store.node_id].address,
            store_port=store.port,
            members=list(members),
            lost=lost,
            mesh=_next_mesh(job),
            batch=_batch_order(job),
            losses=job.progress.losses,
            output=handovers.get(node_id),
            why=why,
        )
        for node_id in recipients
    ]
    return life.having(SendCommands(tuple(zip(recipients, orders, strict=True))))


def _handovers(
    record: AllocationRecord | None, members: Members, running: Collection[str]
) -> dict[str, OutputHandover]:
    """Return the parts of the nodes in a handover of the output folder; none while rank 0 stays on its node."""
    if record is None or not record.members or not members:
        return {}
    writer = record.members[0]
    giver, taker = writer.node_id, members[0].node_id
    if giver == taker:
        return {}
    part = OutputHandover(
        role="take",
        before=record.generation,
        alive=giver in running,
        stays=giver in nodes_of(members),
        renumbered=writer.rank in ranks_left(record.members, members),
    )
    return {taker: part, giver: part.model_copy(update={"role": "give"})}


def _reason_of(record: AllocationRecord | None) -> ChangeReason | None:
    return None if record is None else change_reason(record.reason, record.message)


def send_losses(life: Life) -> Life:
    """Repeat the present order to the nodes of the running generation, with the losses now expected."""
    record, before = life.running, life.job.progress.losses
    assert record is not None, f"{life.job.id} runs without an allocation"
    life = with_losses(life, losses_of_members(life, record.members))
    job, losses = life.job, life.job.progress.losses
    assert losses is not None, f"{job.id} has a fixed checkpoint interval"
    stamp = round(losses.at.timestamp() * 1000)
    orders = [
        OrderCommand(
            command_id=f"{job.id}.{record.generation}.losses-{stamp}.{node_id}",
            job_id=job.id,
            generation=record.generation,
            store_addr=life.loaded_footprint.hosts[record.first_node].address,
            store_port=record.master_port,
            members=list(record.members),
            lost=False,
            mesh=job.progress.mesh,
            batch=_batch_order(job),
            losses=losses,
            why=_reason_of(record),
        )
        for node_id in nodes_of(record.members)
    ]
    once = "" if before is None else f" instead of {before.per_h:.2g}"
    text = f"expects {losses.per_h:.2g} losses per hour{once}: its checkpoint interval follows"
    data = {"losses_per_h": losses.per_h, "before_per_h": None if before is None else before.per_h}
    life = life.noted("losses_expected", message=text, data=data)
    return life.having(SendCommands(tuple(zip(nodes_of(record.members), orders, strict=True))))


def _batch_order(job: Job) -> BatchOrder | None:
    """Return the global batch from the next order on; None for a job whose batch never changes."""
    batch = _next_batch(job)
    return None if batch is None else BatchOrder(global_batch=batch, effect=next_effect(job))


def next_effect(job: Job) -> float:
    """Return the exponent by which ranks count their progress in the next generation."""
    effect = job.switch.batch_effect if job.switch is not None else None
    return job.progress.batch_effect if effect is None else effect


def _next_batch(job: Job) -> int | None:
    """Return the global batch of the next generation: the one that its switch brings, or else the present one.

    Return None for a job whose batch never changes, or is not known yet.
    """
    if not job.adapts:
        return None
    wanted = job.switch.global_batch if job.switch is not None else None
    return wanted or job.progress.global_batch


def stop_generation(
    life: Life, mode: StopMode, *, why: ChangeReason | None = None, dump_stacks: bool = False
) -> Life:
    """Ask every node that holds slots of the job to stop its processes, from every start.

    `why` is the reason that the ranks read; None: that of the job's state.
    """
    why = why or change_reason(life.job.reason, life.job.message)
    held = life.loaded_footprint.held
    oldest = {node: born for born in sorted(held, reverse=True) for node in held[born]}
    stops = []
    for born, nodes in held.items():
        if born <= life.job.newest_generation:
            for node_id in nodes:
                # The stop of the lowest generation also covers older processes that the node may still run.
                down_to = 0 if born == oldest[node_id] else born
                stop = _stop(life.job, born, node_id, mode, oldest=down_to, why=why, dump_stacks=dump_stacks)
                stops.append((node_id, stop))
    return life.having(SendCommands(tuple(stops)))


def stop_start(life: Life, generation: int) -> Life:
    """Kill the processes started for `generation` on the nodes that hold slots for it, and no other
    processes.
    """
    nodes = life.loaded_footprint.held.get(generation, {})
    kills = [(node_id, _stop(life.job, generation, node_id, "kill", oldest=generation)) for node_id in nodes]
    return life.having(SendCommands(tuple(kills)))


def _stop(
    job: Job,
    generation: int,
    node_id: str,
    mode: StopMode,
    *,
    oldest: int,
    why: ChangeReason | None = None,
    dump_stacks: bool = False,
) -> StopCommand:
    command_id = f"{job.id}.{generation}.stop-{mode}.{node_id}"
    return StopCommand(
        command_id=command_id,
        traceparent=_span(job, command_id),
        job_id=job.id,
        generation=generation,
        oldest=oldest,
        mode=mode,
        grace_s=job.spec.checkpoint.grace_s,
        dump_stacks=dump_stacks,
        why=why,
    )
