"""Actions of the pages.

Every form works without scripts, after a confirmation on a page of its own; scripts replace that page.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from functools import partial
from urllib.parse import quote

import structlog
from fastapi import APIRouter
from fastapi.responses import RedirectResponse, Response
from pydantic import ValidationError

from headway.contract.agents import NodeState
from headway.contract.health import QuarantineRequest
from headway.contract.spec import JobSpec
from headway.contract.spec_sweep import SweepSpec
from headway.contract.views.decisions import ParameterValue, PolicyRequest
from headway.contract.views.identity import Role
from headway.contract.views.simulations import SimulationRequest
from headway.errors import HeadwayError
from service.api.http.access import require_somewhere
from service.api.http.context import ApiContext, Context, new_id
from service.api.http.sessions import form_of
from service.api.routes.nodes.nodes import Slot
from service.console.failures import PageRoute
from service.console.html.questions import question
from service.console.pages.submit import EXAMPLE, plan_of, read_job_file
from service.console.routes import About, Project
from service.console.visit import PageVisit, Visit
from service.domain.jobs.restorable import Restorable
from service.domain.shared.errors import HeadwayServiceError, InvalidField, NotFound
from service.usecases.jobs import control, sweeps
from service.usecases.jobs.forecasts import plan_job
from service.usecases.jobs.inherit import CheckpointStore
from service.usecases.jobs.submit import admit
from service.usecases.nodes.commands import set_schedulable
from service.usecases.nodes.quarantine import quarantine_slot, release_slot
from service.usecases.ports.transactions import Transaction
from service.usecases.rounds.policy_choice import choose_policy
from service.usecases.simulations.simulations import ask
from service.usecases.storage.checkpoints import restorable_of

log = structlog.get_logger()
router = APIRouter(include_in_schema=False, route_class=PageRoute)
_CONFIRMED = "sure"
REMARKS: Mapping[str, str] = {"quarantine": "Reason, shown with the slot"}
"""Labels of the comment field, for actions that store a comment."""
_WANTED = {"drain": NodeState.DRAINING, "cordon": NodeState.CORDONED, "uncordon": NodeState.READY}


@router.get("/submit")
async def submit_form(visit: Visit) -> Response:
    """Return the form with an example of a job file."""
    return _submit_page(visit, {"text": EXAMPLE, "plan": None, "problem": ""})


@router.post("/submit")
async def submit_or_plan(context: Context, visit: Visit) -> Response:
    """Submit the job file, which may be a sweep, or forecast its time and cost if `what` is `plan`.

    The file names the project, so that the role in it is checked after parsing. Before it, the caller must have the role
    somewhere: nobody makes the service parse a file that cannot be theirs to submit.
    """
    form = await form_of(visit.request)
    wanted = Role.VIEWER if form.get("what") == "plan" else Role.USER
    require_somewhere(visit.caller, wanted)
    text = form.get("job", "")
    values: dict[str, object] = {"text": text, "plan": None, "problem": ""}
    try:
        plans = wanted is Role.VIEWER
        spec = await asyncio.to_thread(read_job_file, text, sweeps=not plans)  # a large one takes a second
        visit.caller.require(wanted, spec.project)
        if plans:
            async with context.transactions.begin() as tx:
                view = await plan_job(tx, spec, usd_per_slot_h=context.usd_per_slot_h, now=context.now())
            return _submit_page(visit, {**values, "plan": plan_of(view)})
        if isinstance(spec, SweepSpec):
            return await _submit_sweep(context, visit, spec)
        return await _submit_job(context, visit, spec)
    except HeadwayError as error:
        return _submit_page(visit, {**values, "problem": f"{error.what} {error.hint}".strip()}, 422)
    except HeadwayServiceError as error:
        return _submit_page(visit, {**values, "problem": error.message}, 422)


async def _submit_job(context: ApiContext, visit: PageVisit, spec: JobSpec) -> Response:
    now = context.now()
    job_id = new_id("j", now)
    submitted = await admit(
        context.transactions,
        context.admissions,
        CheckpointStore(context.storage, context.launch.checkpoint_root),
        spec,
        caller=visit.caller,
        job_id=job_id,
        idempotency_key=None,
        usd_per_slot_h=context.usd_per_slot_h,
        now=now,
        trace=context.begin_trace(job_id, visit.request.headers.get("traceparent")),
    )
    return _back(f"/jobs/{submitted.job.id}", "submit")


async def _submit_sweep(context: ApiContext, visit: PageVisit, spec: SweepSpec) -> Response:
    now = context.now()
    parent = visit.request.headers.get("traceparent")
    async with context.transactions.begin() as tx:
        stored = await sweeps.submit_sweep(
            tx,
            spec,
            caller=visit.caller,
            sweep_id=new_id("s", now),
            new_job_id=partial(new_id, "j", now),
            begin_trace=lambda job_id: context.begin_trace(job_id, parent),
            idempotency_key=None,
            now=now,
        )
    return _back(f"/sweeps/{stored.id}", "submit-sweep")


def _submit_page(visit: PageVisit, values: Mapping[str, object], status: int = 200) -> Response:
    return visit.page("submit.html", {"page": "submit", **values}, status)


@router.post("/jobs/{job}/{verb}")
async def steer_job(
    context: Context,
    visit: Visit,
    job: About,
    verb: About,
    project: Project = "",
) -> Response:
    """Cancel, pause, resume or resize a job, or change its priority."""
    if verb not in {"cancel", "pause", "resume", "resize", "prioritize"}:
        raise NotFound(f"nothing is called {verb!r} that could be done with a job.")
    seen = frozenset({project}) if project else visit.caller.projects()
    async with context.transactions.begin() as tx:
        known = await tx.job_queries.find(job, seen)
        visit.caller.require(Role.USER, known.project)
        name = (await tx.job_queries.job(known.id)).name
    form = await form_of(visit.request)
    if not form.get(_CONFIRMED):
        return _confirm(visit, verb, name, form, f"/jobs/{known.id}")
    steer = partial(_steer, verb=verb, form=form)
    if verb == "resume":
        root = context.launch.checkpoint_root
        found = await restorable_of(context.transactions, context.storage, root, known.id)
        steer = partial(_resume, by=visit.caller.name, restorable=found)
    async with context.transactions.begin() as tx:
        await steer(tx, context, known.id)
    return _back(f"/jobs/{known.id}", verb)


async def _resume(
    tx: Transaction, context: ApiContext, job_id: str, *, by: str, restorable: Restorable | None
) -> None:
    now = context.now()
    await control.resume(tx, job_id, by=by, restorable=restorable, launch=context.launch, now=now)


async def _steer(
    tx: Transaction, context: ApiContext, job_id: str, *, verb: str, form: Mapping[str, str]
) -> None:
    now = context.now()
    if verb == "cancel":
        await control.cancel(tx, job_id, force=bool(form.get("force")), launch=context.launch, now=now)
    elif verb == "pause":
        await control.pause(tx, job_id, launch=context.launch, now=now)
    elif verb == "prioritize":
        await control.prioritize(tx, job_id, _priority(form), launch=context.launch, now=now)
    else:
        await control.resize(tx, job_id, _slots(form), launch=context.launch, now=now)


@router.post("/sweeps/{sweep}/{verb}")
async def steer_sweep(context: Context, visit: Visit, sweep: About, verb: About) -> Response:
    """Cancel, pause or resume all trials of a sweep, or change their priority."""
    if verb not in {"cancel", "pause", "resume", "prioritize"}:
        raise NotFound(f"nothing is called {verb!r} that could be done with a sweep.")
    async with context.transactions.begin() as tx:
        known = await tx.sweep_queries.find(sweep, visit.caller.projects())
        visit.caller.require(Role.USER, known.project)
        name = (await tx.sweep_queries.sweep(known.id)).name
    form = await form_of(visit.request)
    back, asked = f"/sweeps/{known.id}", f"{verb}-sweep"
    if not form.get(_CONFIRMED):
        return _confirm(visit, verb, name, form, back, asked)
    now, launch = context.now(), context.launch
    async with context.transactions.begin() as tx:
        if verb == "cancel":
            await sweeps.cancel(tx, known.id, force=False, launch=launch, now=now)
        elif verb == "pause":
            await sweeps.pause(tx, known.id, launch=launch, now=now)
        elif verb == "resume":
            await sweeps.resume(tx, known.id, by=visit.caller.name, launch=launch, now=now)
        else:
            await sweeps.prioritize(tx, known.id, _priority(form), launch=launch, now=now)
    return _back(back, asked)


def _slots(form: Mapping[str, str]) -> int | None:
    """Return the requested size, or None if the scheduler is to choose it.

    Raise InvalidField for another value.
    """
    text = form.get("slots", "").strip()
    if form.get("who") == "scheduler" or not text:
        return None
    if not text.isdecimal() or not 1 <= int(text[:6]) <= 4096:
        raise InvalidField("slots", "a size is a number of slots, from 1 to 4096.")
    return int(text)


def _priority(form: Mapping[str, str]) -> int:
    """Return the priority of the form. Raise InvalidField if it is not a number from 0 to 100."""
    text = form.get("priority", "").strip()
    if not text.isdecimal() or int(text[:4]) > 100:
        raise InvalidField("priority", "a priority is a number from 0 to 100.")
    return int(text)


@router.post("/cluster/policy")
async def follow_policy(context: Context, visit: Visit) -> Response:
    """Change the policy of the cluster. Parameters that are not given have their defaults."""
    visit.caller.require(Role.OPERATOR)
    form = await form_of(visit.request)
    wanted = PolicyRequest(policy=form.get("policy", ""), parameters=_parameters(form.get("parameters", "")))
    if not form.get(_CONFIRMED):
        return _confirm(visit, "policy", wanted.policy, form, "/rounds")
    async with context.transactions.begin() as tx:
        await choose_policy(tx, context.policies, wanted, context.now())
    log.info("policy_chosen", policy=wanted.policy, parameters=wanted.parameters, who=visit.caller.name)
    return _back("/rounds", "policy")


def _parameters(text: str) -> dict[str, ParameterValue]:
    """Parse parameters such as `usd_per_h=12 shares=1,2`. Raise InvalidField for another form."""
    found: dict[str, ParameterValue] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        try:
            numbers = [float(one) for one in value.split(",")]
        except ValueError:
            numbers = []
        if not name or not numbers or not all(math.isfinite(one) for one in numbers):
            raise InvalidField("parameters", f"{part!r} is not of the form name=number; a list is 1,2.")
        found[name] = numbers if "," in value else numbers[0]
    return found


@router.post("/nodes/{node}/{verb}")
async def steer_node(context: Context, visit: Visit, node: About, verb: About) -> Response:
    """Drain, cordon or uncordon a node."""
    if verb not in _WANTED:
        raise NotFound(f"nothing is called {verb!r} that could be done with a node.")
    visit.caller.require(Role.OPERATOR)
    form = await form_of(visit.request)
    if not form.get(_CONFIRMED):
        return _confirm(visit, verb, form.get("name", node), form, f"/nodes/{quote(node)}")
    async with context.transactions.begin() as tx:
        changed = await set_schedulable(tx, node, _WANTED[verb])
    log.info("node_steered", node=changed.name, verb=verb, who=visit.caller.name)
    return _back(f"/nodes/{quote(changed.name)}", verb)


@router.post("/nodes/{node}/slots/{slot}/{verb}")
async def steer_slot(context: Context, visit: Visit, node: About, slot: Slot, verb: About) -> Response:
    """Quarantine or release a slot."""
    if verb not in {"quarantine", "release"}:
        raise NotFound(f"nothing is called {verb!r} that could be done with a slot.")
    visit.caller.require(Role.OPERATOR)
    form = await form_of(visit.request)
    if not form.get(_CONFIRMED):
        name = f"{slot} of {form.get('name', node)}"
        return _confirm(visit, verb, name, form, f"/nodes/{quote(node)}")
    async with context.transactions.begin() as tx:
        if verb == "quarantine":
            changed = await quarantine_slot(tx, node, slot, _why(form), context.now())
        else:
            changed = await release_slot(tx, node, slot, context.now())
    log.info("slot_steered", node=changed.name, slot=slot, verb=verb, who=visit.caller.name)
    return _back(f"/nodes/{quote(changed.name)}", verb)


def _why(form: Mapping[str, str]) -> str:
    """Return the reason for a quarantine from the form. Raise InvalidField if it is too long."""
    try:
        return QuarantineRequest(why=form.get("why", "").strip()).why
    except ValidationError as error:
        raise InvalidField("why", str(error.errors()[0]["msg"])) from error


@router.post("/simulations")
async def simulate(context: Context, visit: Visit) -> Response:
    """Start a simulation of one change, and redirect to its page."""
    require_somewhere(visit.caller, Role.USER)
    form, now = await form_of(visit.request), context.now()
    try:
        wanted = SimulationRequest.model_validate({"changes": [_change(form)]})
    except ValidationError as error:
        raise InvalidField("change", "; ".join(str(one["msg"]) for one in error.errors())) from error
    asked = await ask(
        context.transactions,
        wanted,
        context.policies,
        seen=visit.caller.projects(),
        simulation_id=new_id("s", now),
        idempotency_key=None,
        now=now,
    )
    return RedirectResponse(f"/simulations/{asked.view.id}", 303)


def _change(form: Mapping[str, str]) -> dict[str, str]:
    """Return the change that the form describes."""
    change = form.get("change", "")
    fields = {
        "add_nodes": ("device_kind", "nodes"),
        "remove_nodes": ("device_kind", "nodes"),
        "kill_node": ("node",),
        "budget": ("usd_per_h",),
        "policy": ("policy",),
    }.get(change)
    if fields is None:
        raise InvalidField("change", "choose what is to change.")
    return {"change": change, **{name: form.get(name, "").strip() for name in fields}}


def _confirm(
    visit: PageVisit, verb: str, name: str, form: Mapping[str, str], back: str, asked: str = ""
) -> Response:
    """Return the confirmation page, with the values of the form. `asked` names the question, if not the verb does."""
    values = {
        "question": question(asked or verb, name),
        "verb": verb,
        "action": visit.request.url.path,
        "fields": {key: value for key, value in form.items() if key not in {"csrf_token", "why"}},
        "remark": REMARKS.get(verb, ""),
        "back": back,
    }
    return visit.page("confirm.html", values)


def _back(path: str, verb: str) -> Response:
    return RedirectResponse(f"{path}?done={verb}", 303)
