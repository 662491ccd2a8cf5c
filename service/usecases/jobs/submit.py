"""Submit a job: check what only the service can know, then store the job in one statement."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

from headway.contract.run_facts import StartedFrom
from headway.contract.spec import JobSpec, Resize
from headway.contract.spec_submit import submit_problem
from headway.contract.spec_warnings import warnings_of
from headway.contract.values.devices import KNOWN_DEVICE_KINDS
from headway.contract.views.forecasts import DeadlineOutlook
from headway.contract.views.jobs import JobProgress, JobState, Reason
from service.domain.identity.access import Principal
from service.domain.jobs.after import Chance, Predecessor, judge
from service.domain.jobs.job import Job
from service.domain.perf.goal_target import target_of
from service.domain.shared.errors import IdempotencyConflict, InvalidField
from service.usecases.identity.secrets import check_environment, credentials_in
from service.usecases.jobs.deadlines import outlook_at_submit, past_deadline, refusal_of
from service.usecases.jobs.inherit import CheckpointStore, discard, inherited, inherited_name
from service.usecases.jobs.predecessors import predecessors_of
from service.usecases.ports.facts import Accepted, BegunTrace, WakeUp
from service.usecases.ports.jobs import Submitted
from service.usecases.ports.transactions import Transaction, Transactions


async def admit(
    transactions: Transactions,
    admissions: asyncio.Lock,
    checkpoints: CheckpointStore,
    spec: JobSpec,
    *,
    caller: Principal,
    job_id: str,
    idempotency_key: str | None,
    usd_per_slot_h: Mapping[str, float],
    now: datetime,
    trace: BegunTrace | None,
) -> Submitted:
    """Submit the job with the outlook on its deadline, as `submit` does, and raise the same errors.

    Jobs that are promised slots are admitted one after another. `admissions` is the lock of this process. Of the submits that wait for the lock in the database, only its holder
    uses connections. A checkpoint that the job starts from is copied first.

    Raises:
        InvalidField: also as `inherited`.
    """
    if (spec.checkpoint.from_ is not None or spec.after) and idempotency_key is not None:
        async with transactions.begin() as tx:
            before = await tx.jobs.submitted_before(spec.project, idempotency_key)
        if before is not None:  # its checkpoint, or a job that it waits for, may be gone since
            return _of_this_request(before, spec, idempotency_key)
    async with inherited(transactions, checkpoints, spec, caller=caller, job_id=job_id) as origin:
        store = partial(
            submit,
            spec=spec,
            caller=caller,
            job_id=job_id,
            idempotency_key=idempotency_key,
            now=now,
            trace=trace,
            origin=origin,
        )
        submitted = await _in_turn(transactions, admissions, spec, store, usd_per_slot_h, now)
    if origin is not None and not submitted.created:
        await discard(checkpoints, job_id)
    return submitted


async def _in_turn(
    transactions: Transactions,
    admissions: asyncio.Lock,
    spec: JobSpec,
    store: Callable[..., Awaitable[Submitted]],
    usd_per_slot_h: Mapping[str, float],
    now: datetime,
) -> Submitted:
    """Store the job with the outlook on its deadline."""
    outlook_now = partial(outlook_at_submit, transactions, spec, usd_per_slot_h=usd_per_slot_h, now=now)
    if spec.goal.deadline is None or spec.goal.admit != "reject":
        outlook = await outlook_now()
        async with transactions.begin() as tx:
            return await store(tx, outlook=outlook)
    async with admissions, transactions.begin() as tx:
        await tx.jobs.lock_admissions()
        # The outlook has its own transaction. It begins after the lock, so it sees the jobs admitted before.
        return await store(tx, outlook=await outlook_now())


async def submit(
    tx: Transaction,
    spec: JobSpec,
    *,
    caller: Principal,
    job_id: str,
    idempotency_key: str | None,
    now: datetime,
    trace: BegunTrace | None = None,
    outlook: DeadlineOutlook | None = None,
    origin: StartedFrom | None = None,
) -> Submitted:
    """Store the job, or return the one stored before under the same idempotency key and the same spec.

    The insert is the last write of its transaction. The job is traced if `trace` is given. `outlook` is that on
    its deadline. `origin` is the checkpoint that was copied for it.

    Raises:
        InvalidField: an unknown device or project, a bundle or script that was not uploaded, a deadline that is over, or
            `after` as `predecessors_of`.
        NameTaken: a live job of the project has this name.
        IdempotencyConflict: the key was used for another spec.
        DeadlineRefused: its deadline is not feasible, and it is to be refused then.
    """
    return await store(
        tx,
        spec,
        await check(tx, spec, caller),
        caller=caller,
        job_id=job_id,
        idempotency_key=idempotency_key,
        now=now,
        trace=trace,
        outlook=outlook,
        origin=origin,
    )


async def check(tx: Transaction, spec: JobSpec, caller: Principal) -> list[Predecessor]:
    """Return the jobs that a new job waits for, once everything else that it refers to is known to exist.

    Raises:
        InvalidField: as `submit`.
    """
    if (problem := submit_problem(spec)) is not None:
        raise InvalidField(problem[0], f"{problem[0]}: {problem[1]}")
    await check_devices(tx, spec)
    await _check_bundle(tx, spec, caller)
    await check_environment(tx, spec)
    return await predecessors_of(tx, spec)


async def store(
    tx: Transaction,
    spec: JobSpec,
    predecessors: Sequence[Predecessor],
    *,
    caller: Principal,
    job_id: str,
    idempotency_key: str | None,
    now: datetime,
    trace: BegunTrace | None = None,
    outlook: DeadlineOutlook | None = None,
    origin: StartedFrom | None = None,
    alone: bool = True,
) -> Submitted:
    """Store a checked job as `submit` does. Unless it is `alone`, further writes of the transaction follow.

    Raises:
        NameTaken, IdempotencyConflict, DeadlineRefused, InvalidField: as `submit`.
    """
    job = Job(
        id=job_id,
        spec=spec,
        state=JobState.PENDING,
        reason=Reason.AFTER if predecessors else Reason.SUBMITTED,
        message=_first_message(spec, outlook, origin, predecessors),
        waits=bool(predecessors),
        submitted_at=now,
        state_since=now,
        progress=_first_progress(spec, origin),
        traceparent=None if trace is None else trace.traceparent,
        owner=caller.name,
    )
    refusal = past_deadline(spec, now) or refusal_of(spec, outlook)
    # A repeated request returns its job, even if the deadline is no longer feasible.
    submitted = await tx.jobs.insert(
        job,
        idempotency_key=idempotency_key,
        request_digest=_digest(spec),
        last=alone and refusal is None and not predecessors,
    )
    submitted = _of_this_request(submitted, spec, idempotency_key)
    if submitted.created and refusal is not None:
        raise refusal
    if submitted.created:
        if predecessors:
            await tx.chains.add(job_id, predecessors)
        if judge(predecessors).chance is not Chance.WAITS:
            tx.wake(WakeUp.AFTER if predecessors else WakeUp.ROUND)
        tx.tell(Accepted(job, trace))
    return submitted


def _digest(spec: JobSpec) -> str:
    return hashlib.sha256(spec.model_dump_json(by_alias=True).encode()).hexdigest()


def _of_this_request(submitted: Submitted, spec: JobSpec, idempotency_key: str | None) -> Submitted:
    """Return the submitted job, and raise IdempotencyConflict if its key was used for another spec."""
    if submitted.request_digest != _digest(spec):
        raise IdempotencyConflict(
            f"Idempotency-Key {idempotency_key!r} was used for a different job ({submitted.job.name}); "
            "use a new key for a new request."
        )
    return submitted


def _first_message(
    spec: JobSpec,
    outlook: DeadlineOutlook | None,
    origin: StartedFrom | None,
    predecessors: Sequence[Predecessor],
) -> str:
    """Return the message of a job that waits for its first round, or for other jobs."""
    said = [
        judge(predecessors).message if predecessors else "waits for the next round",
        *([f"starts from {origin.text}"] if origin is not None else []),
        *([outlook.message] if outlook is not None else []),
        *_ignored_settings(spec),
        *_hints(spec),
    ]
    return "; ".join(said)


def _first_progress(spec: JobSpec, origin: StartedFrom | None) -> JobProgress:
    """Return the progress of a job before its first start: it may have a checkpoint already."""
    first = JobProgress(goal_target=target_of(spec.goal), started_from=origin)
    if origin is None:
        return first
    copied = inherited_name(origin.checkpoint)
    return first.model_copy(update={"checkpoint_samples": origin.samples, "checkpoint_name": copied})


def _ignored_settings(spec: JobSpec) -> list[str]:
    """Return a message about settings of the spec that this version does not act on, so that none is ignored
    silently.
    """
    searches = spec.goal.search is not None and spec.elastic.resize is not Resize.NEVER
    chooses = searches or spec.market == "mixed"
    ignored = {
        "batch.policy adaptive without elastic.resize live": spec.batch.policy == "adaptive"
        and spec.elastic.resize is not Resize.LIVE,
        "elastic.partial_backprop with elastic.max 1": spec.elastic.min_depth is not None
        and spec.elastic.max == 1,
        "elastic.redundancy without elastic.resize live and elastic.max of 2 or more": spec.elastic.redundant
        and (spec.elastic.resize is not Resize.LIVE or spec.elastic.max == 1),
        "goal.objective without market mixed": spec.goal.objective != "balanced" and not chooses,
        "goal.search with elastic.resize never": spec.goal.search is not None and not searches,
    }
    found = [setting for setting, is_ignored in ignored.items() if is_ignored]
    return [f"this version does not act on {', '.join(found)}"] if found else []


def _hints(spec: JobSpec) -> list[str]:
    """Return suggestions for a better job file."""
    found = credentials_in(spec.env)
    hint = f"env {', '.join(found)} looks like a credential, which everyone who sees the job can read: store it as a secret"
    hints = [f"{hint} (headway secret set)"] if found else []
    return [*hints, *warnings_of(spec)]


async def check_devices(tx: Transaction, spec: JobSpec) -> None:
    """Raise InvalidField for an unknown device kind: with a typo, the job would wait for ever."""
    named = [("resources.devices", kind) for kind in spec.resources.devices]
    named += [("elastic.mix", kind) for kind in spec.elastic.mix]
    unknown = [(field, kind) for field, kind in named if kind not in KNOWN_DEVICE_KINDS]
    if not unknown:
        return
    present = await tx.nodes.device_kinds()
    for field, kind in unknown:
        if kind not in present:
            known = ", ".join(sorted(present)) or "none yet"
            raise InvalidField(field, f"no device kind is called {kind!r}; kinds in this cluster: {known}")


async def _check_bundle(tx: Transaction, spec: JobSpec, caller: Principal) -> None:
    if spec.bundle is None:
        return
    bundle = await tx.bundles.get(spec.bundle, caller)
    if bundle is None:
        raise InvalidField(
            "bundle", f"{spec.bundle} was not uploaded by you; POST it to /api/v1/bundles first"
        )
    script = script_of(spec.run)
    if script is not None and script not in bundle.files:
        raise InvalidField("run", f"{script} is not in the uploaded folder; check workdir and the file name")


def script_of(run: str) -> str | None:
    """Return the relative path of the Python script that a command runs, or None if there is none or it is
    unclear.
    """
    try:
        words = shlex.split(run)
    except ValueError:
        return None
    if len(words) < 2 or words[0] not in {"python", "python3"}:
        return None
    script = words[1]
    if script.startswith(("-", "/", "$", "~")) or not script.endswith(".py"):
        return None
    return script.removeprefix("./")
