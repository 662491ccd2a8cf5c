"""Commands beside ranks: their start, and the reports of agents about them."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final

from headway.contract.agents import ExecCommand
from headway.contract.executions import ExecutionReply, ExecutionReport, ExecutionRequest, ExecutionView
from service.domain.jobs.membership import living
from service.domain.life.life import crew_of
from service.domain.shared.errors import AgentTooOld, IllegalTransition, NotFound, Unavailable
from service.usecases.jobs.life import load_generations
from service.usecases.ports.executions import Execution, Executions
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.transactions import Transaction

MOST_PER_JOB: Final = 4
"""Commands that run beside ranks of one job at a time."""
_OPEN_WITHIN_S: Final = 2.0
"""Limit for Redis while the job's row is locked."""


async def execute(
    tx: Transaction,
    executions: Executions,
    job_name: str,
    request: ExecutionRequest,
    *,
    now: datetime,
) -> ExecutionView:
    """Send the command to the agent of the rank, and return what its output is found by.

    Raises:
        NotFound: there is no such job, or the job has no process with this rank.
        IllegalTransition: no rank of the job runs.
        AgentTooOld: the rank's agent does not know such commands.
        IdempotencyConflict: a command of another job has the id.
        TooManyCommands: as many as may run beside the job's ranks do.
        Unavailable: Redis does not answer.
    """
    job = await tx.jobs.lock(job_name)
    crew = crew_of(job, await load_generations(tx, job))
    oldest = min((one.born_generation for one in (*crew.running, *crew.coming)), default=job.generation)
    found = living(crew, await tx.grants.held(job.id), await tx.jobs.exits(job.id, oldest))
    if not found:
        raise IllegalTransition(f"job {job.name} is {job.state} and has no rank to run a command beside")
    member = next((one for one, _ in found if one.rank == request.rank), None)
    if member is None:
        raise NotFound(
            f"job {job.name} has no process with rank {request.rank}; see: headway ranks {job.name}"
        )
    node = (await tx.nodes.many([member.node_id]))[member.node_id]
    if not await tx.links.executes(node.id, with_input=request.has_input):
        what = "give commands an input" if request.has_input else "run commands beside ranks"
        raise AgentTooOld(
            f"the agent of node {node.name} ({node.agent_version}) is too old to {what}; update it"
        )
    execution = Execution(
        id=request.id,
        job_id=job.id,
        generation=member.born_generation,
        rank=member.born_rank,
        node_id=node.id,
        has_input=request.has_input,
        has_terminal=request.terminal is not None,
    )
    command = ExecCommand(
        command_id=f"{job.id}.{execution.generation}.exec-{execution.id}.{node.id}",
        job_id=job.id,
        generation=execution.generation,
        rank=execution.rank,
        execution=execution.id,
        argv=request.argv,
        timeout_s=request.timeout_s,
        stdin=request.stdin,
        terminal=request.terminal,
    )
    await tx.commands.add([(node.id, command)], now)
    tx.wake(WakeUp.COMMANDS)
    try:
        async with asyncio.timeout(_OPEN_WITHIN_S):
            await executions.open(execution, MOST_PER_JOB)  # last: it stays for a while if the commit fails
    except TimeoutError:
        raise Unavailable(f"Redis does not answer within {_OPEN_WITHIN_S:g} s; try again") from None
    return ExecutionView(
        id=execution.id,
        job_id=job.id,
        generation=execution.generation,
        rank=execution.rank,
        node=node.name,
    )


async def find_of_job(executions: Executions, job_id: str, execution_id: str) -> Execution:
    """Return a command of a job. Raise NotFound if the job has no such command."""
    execution = await executions.find(execution_id)
    if execution.job_id != job_id:
        raise NotFound(f"the job has no command {execution_id}")
    return execution


async def take_report(
    executions: Executions, node_id: str, execution_id: str, report: ExecutionReport
) -> ExecutionReply:
    """Store a report of a node about its command.

    Raises:
        NotFound: the node has no such command.
        TooLarge: the command has more output than is kept.
        Unavailable: Redis does not answer; the agent repeats the report.
    """
    execution = await find_of_job(executions, report.job_id, execution_id)
    if execution.node_id != node_id or execution.generation != report.generation:
        raise NotFound(f"this node has no command {execution_id}")
    if report.sequence == 0:
        return ExecutionReply(cancelled=not await executions.claim(execution, report.claim))
    return await executions.append(execution, report)
