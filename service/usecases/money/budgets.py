"""Budgets: set them, report their usage, and act when the money of a job or of a scope is spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from headway.contract.spec import Resize
from headway.contract.values.dollars import dollars
from headway.contract.views.decisions import PolicyRequest, RowPrice
from headway.contract.views.identity import EVERYWHERE, Role
from headway.contract.views.jobs import TERMINAL_STATES, JobState, Reason
from headway.contract.views.money import BudgetKind, BudgetRequest, BudgetView, Period
from headway.contract.views.webhooks import Topic
from service.domain.cluster.snapshot import PolicySetting, budget_row
from service.domain.identity.access import Principal
from service.domain.life.life import Launch
from service.domain.policies.budget import BudgetPolicy
from service.domain.policies.registry import POLICIES
from service.domain.rental.budgets import (
    Budget,
    BudgetUsage,
    JobSpend,
    notice_due,
    period_of,
    subject_of_budget,
)
from service.domain.shared.errors import ChangedMeanwhile, Forbidden, InvalidField, NotFound
from service.usecases.identity.projects import no_project
from service.usecases.jobs import control
from service.usecases.jobs.events import record
from service.usecases.money.budget_state import budget_usages
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.money import LimitedJob
from service.usecases.ports.transactions import Transaction, Transactions
from service.usecases.rounds.policy_choice import choose_policy

LONG_RUN_POLICY = BudgetPolicy.name
EVENT = "budget"
"""Kind of the events about money."""


async def list_budgets(tx: Transaction, now: datetime, *, seen: frozenset[str] | None) -> list[BudgetView]:
    """Return every budget with its usage, by name: those of the projects in `seen`, or (None) all, the
    cluster's included.
    """
    found = await budget_usages(tx.spending, now, lambda one: seen is None or one.project in seen)
    prices = await _prices(tx) if found else {}
    setting = await tx.rounds.policy()
    return [_view(budget, usage, prices, setting) for budget, usage in found]


async def get_budget(tx: Transaction, name: str, now: datetime, *, seen: frozenset[str] | None) -> BudgetView:
    """Return a budget that the reader may see. Raise NotFound if there is none."""
    for view in await list_budgets(tx, now, seen=seen):
        if view.name == name:
            return view
    raise NotFound(f"no budget has the name {name!r}; `headway budget` lists them.")


async def put_budget(
    tx: Transaction,
    caller: Principal,
    name: str,
    request: BudgetRequest,
    *,
    if_version: int | None,
    now: datetime,
) -> bool:
    """Set a budget from the next round on. Return True if it is new. A repetition changes nothing.

    Raises:
        ChangedMeanwhile: it has another version than `if_version` and other settings than requested. A
            repetition after a lost answer names an outdated version, but requests the present settings, and
            succeeds.
        InvalidField: there is a long-run average already, or no such project.
        NotFound: the caller is not a member of its project.
        Forbidden: the caller is not an admin of its project, or everywhere for the cluster's; or the name is
            taken.
    """
    caller.require(Role.ADMIN, request.project or EVERYWHERE)
    if request.project is not None and not await tx.projects.exists(request.project):
        raise InvalidField("project", no_project(request.project))
    known = await tx.spending.lock_budget(name)
    if known is not None and not caller.may(Role.ADMIN, known.project or EVERYWHERE):
        raise Forbidden(f"the name {name} belongs to a budget that you may not change; choose another name.")
    if known is None or _request_of(known) != request:
        _check_version(name, known, if_version)
        await tx.spending.save_budget(name, request, known.version + 1 if known is not None else 1, now)
        tx.wake(WakeUp.ROUND)
    if request.kind is BudgetKind.LONG_RUN:
        await _follow(tx, request.usd, now)
    elif known is not None and known.kind is BudgetKind.LONG_RUN:
        await _stop_following(tx, now)
    return known is None


async def delete_budget(
    tx: Transaction, caller: Principal, name: str, *, if_version: int | None, now: datetime
) -> None:
    """Remove a budget of any kind.

    Jobs that it held back go on from the next round on.

    Raises:
        NotFound: there is no budget of that name.
        ChangedMeanwhile: it has another version than `if_version`.
        Forbidden: the caller may see it, but is not an admin of its project.
    """
    known = await tx.spending.lock_budget(name)
    seen = caller.projects()
    if known is None or (seen is not None and known.project not in seen):
        raise NotFound(f"no budget has the name {name!r}; `headway budget` lists them.")
    caller.require(Role.ADMIN, known.project or EVERYWHERE)
    _check_version(name, known, if_version)
    await tx.spending.delete_budget(name)
    if known.kind is BudgetKind.LONG_RUN:
        await _stop_following(tx, now)
    tx.wake(WakeUp.ROUND)


def _check_version(name: str, known: Budget | None, if_version: int | None) -> None:
    if if_version is not None and (known is None or known.version != if_version):
        there = "it does not exist" if known is None else f"it is at version {known.version}"
        raise ChangedMeanwhile(
            f"budget {name} is not at version {if_version} any more: {there}; read it again and repeat your change."
        )


def _request_of(budget: Budget) -> BudgetRequest:
    return BudgetRequest(
        kind=budget.kind, usd=budget.usd, period=budget.period, project=budget.project, hard=budget.hard
    )


async def _follow(tx: Transaction, usd_per_h: float, now: datetime) -> None:
    """Choose the policy that keeps spending to a long-run average."""
    setting = await tx.rounds.policy()
    parameters = dict(setting.parameters) if setting.name == LONG_RUN_POLICY else {}
    if setting.name != LONG_RUN_POLICY or parameters.get("usd_per_h") != usd_per_h:
        wanted = PolicyRequest(policy=LONG_RUN_POLICY, parameters={**parameters, "usd_per_h": usd_per_h})
        await choose_policy(tx, POLICIES, wanted, now)


async def _stop_following(tx: Transaction, now: datetime) -> None:
    if (await tx.rounds.policy()).name == LONG_RUN_POLICY:
        default = PolicySetting()
        await choose_policy(tx, POLICIES, PolicyRequest(policy=default.name), now)


async def _prices(tx: Transaction) -> dict[str, RowPrice]:
    """Return the rows of the latest round by name, or {} before the first round."""
    try:
        return {row.name: row for row in (await tx.round_queries.round("latest", seen=None)).prices}
    except NotFound:
        return {}


def _view(
    budget: Budget, usage: BudgetUsage, prices: Mapping[str, RowPrice], setting: PolicySetting
) -> BudgetView:
    message = usage.message
    if budget.kind is BudgetKind.LONG_RUN and setting.name != LONG_RUN_POLICY:
        message += f"; the policy {setting.name} does not keep to an average; choose the policy that does: headway policy budget"
    fields = {**asdict(budget), **asdict(usage), "message": message}
    return BudgetView(**fields, usd_price=prices.get(budget_row(budget.name)))


@dataclass(frozen=True, slots=True)
class _Notice:
    """A share of some money about which a notice is due."""

    subject: str
    since: datetime
    share: float


async def watch_money(transactions: Transactions, launch: Launch, now: datetime) -> list[str]:
    """Send a notice when the used share of a budget or a job's limit reaches a threshold. Return the subjects
    of the notices.

    Jobs whose own limit is spent are paused or stopped if their spec says so. Rounds enforce hard budgets
    themselves.
    """
    async with transactions.begin() as tx:
        sent = await tx.spending.notices()
        of_scopes = [
            (budget, usage, notice)
            for budget, usage in await budget_usages(tx.spending, now)
            if (notice := _due_of_scope(budget, usage, sent, now))
        ]
        limited = await tx.spending.limited_jobs()
        spend = await tx.spending.job_spend([one.job_id for one in limited]) if limited else {}
    of_jobs = [
        (one, spend[one.job_id], notice)
        for one in limited
        if one.job_id in spend
        and (notice := _due(f"job/{one.job_id}", spend[one.job_id].usd / one.max_usd, one.submitted_at, sent))
    ]
    for budget, usage, notice in of_scopes:
        async with transactions.begin() as tx:
            await _notify_scope(tx, budget, usage, notice, now)
    for job, spent, notice in of_jobs:
        async with transactions.begin() as tx:
            await _notify_job(tx, job, spent, notice, launch, now)
    return [notice.subject for _, _, notice in (*of_scopes, *of_jobs)]


def _due_of_scope(
    budget: Budget, usage: BudgetUsage, sent: Mapping[str, tuple[datetime, float]], now: datetime
) -> _Notice | None:
    subject = subject_of_budget(budget.name)
    if budget.period is not None:
        return _due(subject, usage.share, usage.period_from, sent)
    # Dollars per hour vary. An excess is reported once a day.
    today = max(period_of(Period.DAY, now)[0], budget.updated_at)
    return _due(subject, 1.0, today, sent) if usage.over else None


def _due(
    subject: str, share: float, since: datetime, sent: Mapping[str, tuple[datetime, float]]
) -> _Notice | None:
    reached = notice_due(share, since, sent.get(subject))
    return None if reached is None else _Notice(subject, since, reached)


async def _notify_scope(
    tx: Transaction, budget: Budget, usage: BudgetUsage, notice: _Notice, now: datetime
) -> None:
    await tx.spending.add_notice(notice.subject, notice.since, notice.share, now)
    tx.wake(WakeUp.ROUND)
    if notice.share <= 0:
        return  # money is available again
    if budget.project is not None:
        told = {
            "project": budget.project,
            "budget": budget.name,
            "share": usage.share,
            "spent_usd": usage.spent_usd,
            "usd": budget.usd,
            "message": f"budget {budget.name}: {usage.message}",
        }
        await tx.outbox.add(budget.project, Topic.BUDGET_THRESHOLD, told, now)
    held = await tx.spending.holders(budget.project)
    jobs = await tx.jobs.lock_many(sorted(held))
    kind = "hard" if budget.hard else "soft"
    data = {"budget": budget.name, "share": usage.share, "spent_usd": usage.spent_usd, "usd": budget.usd}
    for job in jobs.values():
        message = f"budget {budget.name} ({kind}): {usage.message}"
        if budget.hard and job.spec.elastic.resize is Resize.NEVER:
            message += "; this job has elastic.resize: never and runs to its end, unless you cancel it"
        await record(tx, job, EVENT, reason=Reason.BUDGET, message=message, now=now, data=data)


async def _notify_job(
    tx: Transaction, limited: LimitedJob, spent: JobSpend, notice: _Notice, launch: Launch, now: datetime
) -> None:
    """Record an event about a job's own limit, and act as its spec says when the limit is spent."""
    await tx.spending.add_notice(notice.subject, notice.since, notice.share, now)
    job = (await tx.jobs.lock_many([limited.job_id])).get(limited.job_id)
    if job is None or job.state in TERMINAL_STATES or notice.share <= 0:
        return
    of = f"{dollars(spent.usd)} of its {dollars(limited.max_usd)} are spent"
    data = {"share": spent.usd / limited.max_usd, "spent_usd": spent.usd, "usd": limited.max_usd}
    ends = notice.share >= 1
    what = {
        "shrink": "it uses its cheapest configuration from now on",
        "pause": "it pauses; `headway resume` continues it beyond the limit",
        "stop": "it stops for good, after a checkpoint",
    }[limited.on_budget]
    message = f"{of}: {what}" if ends else f"{of}; goal.on_budget is {limited.on_budget}"
    await record(tx, job, EVENT, reason=Reason.BUDGET, message=message, now=now, data=data)
    tx.wake(WakeUp.ROUND)
    if not ends or job.state is JobState.CANCELLING:
        return
    if limited.on_budget == "pause":
        await control.pause(
            tx, job.id, launch=launch, now=now, reason=Reason.BUDGET, why="its budget is spent"
        )
    if limited.on_budget == "stop":
        await control.cancel(
            tx, job.id, force=False, launch=launch, now=now, reason=Reason.BUDGET, message=f"{of}: stopped"
        )
