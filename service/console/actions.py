"""What people do on the pages. Every form works without scripts: it is confirmed on a page of its own, which scripts spare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from urllib.parse import quote

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import ValidationError

from headway.contract.agents import NodeState
from headway.contract.decisions import ParameterValue, PolicyRequest
from headway.contract.health import QuarantineRequest
from headway.contract.identity import Role
from headway.contract.simulations import SimulationRequest
from headway.errors import HeadwayError
from service.api.access import Caller
from service.api.context import ApiContext, Context, new_id
from service.api.nodes import Slot
from service.api.sessions import form_of
from service.console.failures import PageRoute
from service.console.pages import About, Project, TheDesk, frame
from service.console.submit import EXAMPLE, plan_of, read_job_file
from service.domain.access import Principal
from service.domain.errors import HeadwayServiceError, InvalidField, NotFound
from service.usecases import control
from service.usecases.cluster import choose_policy
from service.usecases.forecasts import plan_job
from service.usecases.nodes import set_schedulable
from service.usecases.ports import Transaction
from service.usecases.quarantine import quarantine_slot, release_slot
from service.usecases.simulations import ask
from service.usecases.submit import submit

log = structlog.get_logger()
router = APIRouter(include_in_schema=False, route_class=PageRoute)
_CONFIRMED = "sure"
QUESTIONS: Mapping[str, str] = {
    "cancel": "Cancel {name}? It saves a last checkpoint and stops for good.",
    "pause": "Pause {name}? It saves a checkpoint, gives its slots back, and waits until it is resumed.",
    "resume": "Resume {name}? It goes on from its checkpoint as soon as there is room.",
    "resize": "Change the size of {name}?",
    "prioritize": "Change the priority of {name}? Each 25 points double its weight against others, from the next round on.",
    "policy": "Have the cluster follow {name}? Slots are given out by it from the next round on, and jobs may change their sizes.",
    "drain": "Drain {name}? Its jobs move to other nodes, and it gets no new ones.",
    "cordon": "Cordon {name}? Its jobs go on, and it gets no new ones.",
    "uncordon": "Uncordon {name}? It gets jobs again.",
    "quarantine": "Keep slot {name} from jobs? The job that is on it moves away, and it gets no other until it is released.",
    "release": "Release slot {name} from quarantine? It gets jobs again at the next round.",
}
"""What is asked before it is done."""
REMARKS: Mapping[str, str] = {"quarantine": "Why? Whoever looks at the slot is told."}
"""Where a word of whoever does it is kept: the label of its field."""
_WANTED = {"drain": NodeState.DRAINING, "cordon": NodeState.CORDONED, "uncordon": NodeState.READY}


@router.get("/submit")
async def submit_form(request: Request, caller: Caller, desk: TheDesk) -> Response:
    """A job file to begin with."""
    return _submit_page(request, caller, desk, {"text": EXAMPLE, "plan": None, "problem": ""})


@router.post("/submit")
async def submit_or_plan(request: Request, context: Context, caller: Caller, desk: TheDesk) -> Response:
    """Submit the job file, or (`what` is `plan`) say what it would take."""
    form = await form_of(request)
    text = form.get("job", "")
    values: dict[str, object] = {"text": text, "plan": None, "problem": ""}
    try:
        spec = read_job_file(text)
        if form.get("what") == "plan":
            caller.require(Role.VIEWER, spec.project)
            async with context.transactions.begin() as tx:
                view = await plan_job(tx, spec, usd_per_slot_h=context.usd_per_slot_h, now=context.now())
            return _submit_page(request, caller, desk, {**values, "plan": plan_of(view)})
        caller.require(Role.USER, spec.project)
        now = context.now()
        job_id = new_id("j", now)
        trace = context.begin_trace(job_id, request.headers.get("traceparent"))
        async with context.transactions.begin() as tx:
            submitted = await submit(
                tx, spec, caller=caller, job_id=job_id, idempotency_key=None, now=now, trace=trace
            )
    except HeadwayError as error:
        return _submit_page(
            request, caller, desk, {**values, "problem": f"{error.what} {error.hint}".strip()}, 422
        )
    except HeadwayServiceError as error:
        return _submit_page(request, caller, desk, {**values, "problem": error.message}, 422)
    return RedirectResponse(f"/jobs/{submitted.job.id}?done=submit", 303)


def _submit_page(
    request: Request, caller: Principal, desk: TheDesk, values: Mapping[str, object], status: int = 200
) -> Response:
    html = desk.templates.page("submit.html", {**frame(request, caller, desk), "page": "submit", **values})
    return HTMLResponse(html, status, headers={"Cache-Control": "no-store"})


@router.post("/jobs/{job}/{verb}")
async def steer_job(
    request: Request,
    context: Context,
    caller: Caller,
    desk: TheDesk,
    job: About,
    verb: About,
    project: Project = "",
) -> Response:
    """Cancel, pause, resume or resize a job, or change its priority."""
    if verb not in {"cancel", "pause", "resume", "resize", "prioritize"}:
        raise NotFound(f"nothing is called {verb!r} that could be done with a job.")
    seen = frozenset({project}) if project else caller.projects()
    async with context.transactions.begin() as tx:
        known = await tx.job_queries.find(job, seen)
        caller.require(Role.USER, known.project)
        name = (await tx.job_queries.job(known.id)).name
    form = await form_of(request)
    if not form.get(_CONFIRMED):
        return _confirm(request, caller, desk, verb, name, form, f"/jobs/{known.id}")
    async with context.transactions.begin() as tx:
        await _steer(tx, context, known.id, verb, form)
    return _back(f"/jobs/{known.id}", verb)


async def _steer(
    tx: Transaction, context: ApiContext, job_id: str, verb: str, form: Mapping[str, str]
) -> None:
    now = context.now()
    if verb == "cancel":
        await control.cancel(tx, job_id, force=bool(form.get("force")), launch=context.launch, now=now)
    elif verb == "pause":
        await control.pause(tx, job_id, now=now)
    elif verb == "resume":
        await control.resume(tx, job_id, now=now)
    elif verb == "prioritize":
        await control.prioritize(tx, job_id, _priority(form), now=now)
    else:
        await control.resize(tx, job_id, _slots(form), now=now)


def _slots(form: Mapping[str, str]) -> int | None:
    """The size that was asked for; None gives the choice back to the scheduler. Raises InvalidField."""
    text = form.get("slots", "").strip()
    if form.get("who") == "scheduler" or not text:
        return None
    if not text.isdecimal() or not 1 <= int(text[:6]) <= 4096:
        raise InvalidField("slots", "a size is a number of slots, from 1 to 4096.")
    return int(text)


def _priority(form: Mapping[str, str]) -> int:
    """Raises InvalidField."""
    text = form.get("priority", "").strip()
    if not text.isdecimal() or int(text[:4]) > 100:
        raise InvalidField("priority", "a priority is a number from 0 to 100.")
    return int(text)


@router.post("/cluster/policy")
async def follow_policy(request: Request, context: Context, caller: Caller, desk: TheDesk) -> Response:
    """Have the cluster follow another policy, with its own parameters but for those that are given."""
    caller.require(Role.OPERATOR)
    form = await form_of(request)
    wanted = PolicyRequest(policy=form.get("policy", ""), parameters=_parameters(form.get("parameters", "")))
    if not form.get(_CONFIRMED):
        return _confirm(request, caller, desk, "policy", wanted.policy, form, "/rounds")
    async with context.transactions.begin() as tx:
        await choose_policy(tx, wanted, context.now())
    log.info("policy_chosen", policy=wanted.policy, parameters=wanted.parameters, who=caller.name)
    return _back("/rounds", "policy")


def _parameters(text: str) -> dict[str, ParameterValue]:
    """`usd_per_h=12 shares=1,2`. Raises InvalidField."""
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
async def steer_node(
    request: Request, context: Context, caller: Caller, desk: TheDesk, node: About, verb: About
) -> Response:
    """Drain, cordon or uncordon a node."""
    if verb not in _WANTED:
        raise NotFound(f"nothing is called {verb!r} that could be done with a node.")
    caller.require(Role.OPERATOR)
    form = await form_of(request)
    if not form.get(_CONFIRMED):
        return _confirm(request, caller, desk, verb, form.get("name", node), form, f"/nodes/{quote(node)}")
    async with context.transactions.begin() as tx:
        changed = await set_schedulable(tx, node, _WANTED[verb])
    log.info("node_steered", node=changed.name, verb=verb, who=caller.name)
    return _back(f"/nodes/{quote(changed.name)}", verb)


@router.post("/nodes/{node}/slots/{slot}/{verb}")
async def steer_slot(
    request: Request, context: Context, caller: Caller, desk: TheDesk, node: About, slot: Slot, verb: About
) -> Response:
    """Keep a slot from jobs, or give it to them again."""
    if verb not in {"quarantine", "release"}:
        raise NotFound(f"nothing is called {verb!r} that could be done with a slot.")
    caller.require(Role.OPERATOR)
    form = await form_of(request)
    if not form.get(_CONFIRMED):
        name = f"{slot} of {form.get('name', node)}"
        return _confirm(request, caller, desk, verb, name, form, f"/nodes/{quote(node)}")
    async with context.transactions.begin() as tx:
        if verb == "quarantine":
            changed = await quarantine_slot(tx, node, slot, _why(form), context.now())
        else:
            changed = await release_slot(tx, node, slot, context.now())
    log.info("slot_steered", node=changed.name, slot=slot, verb=verb, who=caller.name)
    return _back(f"/nodes/{quote(changed.name)}", verb)


def _why(form: Mapping[str, str]) -> str:
    """What whoever asks is told. Raises InvalidField."""
    try:
        return QuarantineRequest(why=form.get("why", "").strip()).why
    except ValidationError as error:
        raise InvalidField("why", str(error.errors()[0]["msg"])) from error


@router.post("/simulations")
async def simulate(request: Request, context: Context, caller: Caller) -> Response:
    """Ask a what-if question."""
    if caller.projects(Role.USER) == frozenset():
        caller.require(Role.USER)
    form, now = await form_of(request), context.now()
    try:
        wanted = SimulationRequest.model_validate({"changes": [_change(form)]})
    except ValidationError as error:
        raise InvalidField("change", "; ".join(str(one["msg"]) for one in error.errors())) from error
    asked = await ask(
        context.transactions,
        wanted,
        seen=caller.projects(),
        simulation_id=new_id("s", now),
        idempotency_key=None,
        now=now,
    )
    return RedirectResponse(f"/simulations/{asked.view.id}", 303)


def _change(form: Mapping[str, str]) -> dict[str, str]:
    """One change out of the form's fields."""
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
    request: Request,
    caller: Principal,
    desk: TheDesk,
    verb: str,
    name: str,
    form: Mapping[str, str],
    back: str,
) -> Response:
    """The question, with what was filled in."""
    values = {
        **frame(request, caller, desk),
        "question": QUESTIONS[verb].format(name=name),
        "verb": verb,
        "action": request.url.path,
        "fields": {key: value for key, value in form.items() if key not in {"csrf_token", "why"}},
        "remark": REMARKS.get(verb, ""),
        "back": back,
    }
    return HTMLResponse(desk.templates.page("confirm.html", values), headers={"Cache-Control": "no-store"})


def _back(path: str, verb: str) -> Response:
    return RedirectResponse(f"{path}?done={verb}", 303)
