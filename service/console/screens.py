"""The pages, each by what it reads. All of them read what the API reads, in the same way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from headway.contract.decisions import ExplanationView, RoundView
from headway.contract.forecasts import ForecastView
from headway.contract.jobs import EventView, JobState, JobView
from headway.contract.money import BudgetKind, GroupBy
from headway.contract.nodes import NodeView
from service.api.context import ApiContext
from service.console.cluster import cluster_page
from service.console.job import JobViews, job_page
from service.console.jobs import jobs_page
from service.console.money import money_page
from service.console.node import node_page
from service.console.pieces import Content, Piece
from service.console.policy import policy_piece
from service.console.rounds import rounds_page
from service.console.simulations import simulation_page, simulations_page
from service.domain.errors import NotFound
from service.usecases.budgets import list_budgets
from service.usecases.cluster import view_cluster
from service.usecases.explanations import explain_job
from service.usecases.forecasts import forecast_job
from service.usecases.machine_views import seen_machines
from service.usecases.ports import Transaction
from service.usecases.records import JobFilter
from service.usecases.usage import view_usage

_PER_PAGE = 50
_JOBS_OF_CLUSTER = 100
_EVENTS = 200
_POINTS = 400
_FORESIGHT_S = 10.0
"""A job's forecast and explanation are made anew this often, and whenever its state or size changes: they cost a round."""
_MONEY_S = 5.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What somebody may see and do, as far as pages differ by it. `projects`: None for all of them."""

    projects: frozenset[str] | None
    steers: bool = False
    operates: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """A page: its name, what it is about, and for whose eyes."""

    page: str
    sight: Sight
    about: str = ""
    state: str = ""
    project: str = ""
    cursor: str = ""


Memory = dict[str, Any]


class Screens:
    """Reads every page."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._read: dict[str, Callable[[Key, Memory], Awaitable[list[Content]]]] = {
            "cluster": self._cluster,
            "jobs": self._jobs,
            "job": self._job,
            "node": self._node,
            "rounds": self._rounds,
            "money": self._money,
            "simulations": self._simulations,
            "simulation": self._simulation,
        }

    async def read(self, key: Key, memory: Memory) -> list[Content]:
        """The pieces of a page.

        Raises:
            NotFound: there is no such page, or nothing that it could be about.
        """
        read = self._read.get(key.page)
        if read is None:
            raise NotFound(f"there is no page {key.page!r}.")
        return await read(key, memory)

    async def _cluster(self, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG002 - every reader is given it
        context = self._context
        filters = JobFilter(state=None, name=None, project=None, live_only=True, projects=key.sight.projects)
        async with context.transactions.begin() as tx:
            cluster = await view_cluster(tx, context.usd_per_slot_h, seen=key.sight.projects)
            nodes = await tx.node_queries.list_nodes(context.now(), context.silence, seen=key.sight.projects)
            jobs = await tx.job_queries.list_jobs(filters, limit=_JOBS_OF_CLUSTER, cursor=None)
            latest = await _latest(tx, key.sight)
        page = cluster_page(cluster, nodes, jobs.items, latest, context.usd_per_slot_h)
        return page.contents()

    async def _jobs(self, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG002
        context = self._context
        live = key.state in {"", "live"}
        state = None if live or key.state == "all" else JobState(key.state)
        filters = JobFilter(
            state=state, name=None, project=key.project or None, live_only=live, projects=key.sight.projects
        )
        async with context.transactions.begin() as tx:
            page = await tx.job_queries.list_jobs(filters, limit=_PER_PAGE, cursor=key.cursor or None)
            sizes = await tx.console_queries.sizes([one.id for one in page.items])
        return [*jobs_page(page, sizes, context.now()).contents(), pager(key, page.next_cursor)]

    async def _job(self, key: Key, memory: Memory) -> list[Content]:
        context = self._context
        events: list[EventView] = memory.setdefault("events", [])
        async with context.transactions.begin() as tx:
            job = await tx.job_queries.job(key.about)
            while True:
                after = events[-1].sequence if events else 0
                page = await tx.history_queries.events(job.id, after=after, limit=500)
                events += page.items
                del events[:-_EVENTS]
                if page.next_cursor is None:
                    break
            if memory.get("series_at") != job.progress.samples:
                memory["series"] = await tx.console_queries.series(job.id, _POINTS)
                memory["series_at"] = job.progress.samples
            sizes = (await tx.console_queries.sizes([job.id])).get(job.id, [])
        now = context.now()
        explanation, forecast = await self._foresight(
            job.id, (job.state, job.size, job.message, *_known(job)), memory, now
        )
        views = JobViews(
            job=job,
            explanation=explanation,
            forecast=forecast,
            events=list(events),
            sizes=sizes,
            series=memory["series"],
        )
        return job_page(views, steers=key.sight.steers, now=now).contents()

    async def _foresight(
        self, job_id: str, of: tuple[object, ...], memory: Memory, now: datetime
    ) -> tuple[ExplanationView, ForecastView]:
        kept = memory.get("foresight")
        if kept is not None and kept[0] == of and now - kept[1] < timedelta(seconds=_FORESIGHT_S):
            return kept[2], kept[3]
        prices = self._context.usd_per_slot_h
        async with self._context.transactions.begin() as tx:
            explanation = await explain_job(tx, job_id, prices)
            view = await tx.job_queries.job(job_id)
        async with self._context.transactions.begin() as tx:
            forecast = await forecast_job(tx, view, usd_per_slot_h=prices, now=now)
        memory["foresight"] = (of, now, explanation, forecast)
        return explanation, forecast

    async def _node(self, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG002
        node = node_of(await self._nodes(key.sight), key.about)
        return node_page(node, operates=key.sight.operates).contents()

    async def _nodes(self, sight: Sight) -> list[NodeView]:
        async with self._context.transactions.begin() as tx:
            return await tx.node_queries.list_nodes(
                self._context.now(), self._context.silence, seen=sight.projects
            )

    async def _rounds(self, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG002
        async with self._context.transactions.begin() as tx:
            page = await tx.decision_queries.rounds(
                limit=_PER_PAGE, cursor=key.cursor or None, seen=key.sight.projects
            )
            cluster = await view_cluster(tx, self._context.usd_per_slot_h, seen=key.sight.projects)
        policy = policy_piece(cluster, operates=key.sight.operates)
        return [policy, *rounds_page(page.items).contents(), pager(key, page.next_cursor)]

    async def _money(self, key: Key, memory: Memory) -> list[Content]:
        context, now = self._context, self._context.now()
        if memory.get("at") is not None and now - memory["at"] < timedelta(seconds=_MONEY_S):
            kept: list[Content] = memory["money"]
            return kept
        seen = key.sight.projects
        asked = frozenset({key.project}) if key.project else seen
        projects = asked if seen is None or asked is None else asked & seen
        async with context.transactions.begin() as tx:
            by_project = await view_usage(
                tx, since=None, until=None, by=GroupBy.PROJECT, projects=projects, now=now
            )
            by_job = await view_usage(tx, since=None, until=None, by=GroupBy.JOB, projects=projects, now=now)
            budgets = await list_budgets(tx, now, seen=key.sight.projects)
            days = {
                one.name: (
                    await view_usage(
                        tx,
                        since=one.period_from,
                        until=None,
                        by=GroupBy.DAY,
                        projects=None if one.project is None else frozenset({one.project}),
                        now=now,
                    )
                ).groups
                for one in budgets
                if one.kind is BudgetKind.PERIOD
            }
            found = await tx.machines.views(now, open_only=True, limit=_PER_PAGE, cursor=None)
        machines = seen_machines(found, seen)
        memory["at"] = now
        memory["money"] = money_page(by_project, by_job, budgets, days, machines.items).contents()
        return list(memory["money"])

    async def _simulations(self, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG002
        async with self._context.transactions.begin() as tx:
            page = await tx.simulations.page(
                limit=_PER_PAGE, cursor=key.cursor or None, seen=key.sight.projects
            )
        return [*simulations_page(page.items).contents(), pager(key, page.next_cursor)]

    async def _simulation(self, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG002
        async with self._context.transactions.begin() as tx:
            view = await tx.simulations.get(key.about, seen=key.sight.projects)
        return simulation_page(view).contents()


def _known(job: JobView) -> tuple[bool, ...]:
    """What can be foretold of a job depends on this being known."""
    return job.progress.total_samples is None, job.progress.samples_per_s is None


def address_of(key: Key, cursor: str = "") -> str:
    """The address of a listing, from a cursor on."""
    query = {"state": key.state, "project": key.project, "cursor": cursor}
    return f"/{key.page}?{urlencode({name: value for name, value in query.items() if value})}"


def pager(key: Key, next_cursor: str | None) -> Piece:
    """The links to the first and the next page of a listing."""
    first = address_of(key) if key.cursor else ""
    return Piece("pager", "pager", (first, address_of(key, next_cursor) if next_cursor else ""))


async def _latest(tx: Transaction, sight: Sight) -> RoundView | None:
    try:
        return await tx.decision_queries.round("latest", seen=sight.projects)
    except NotFound:
        return None


def node_of(nodes: list[NodeView], wanted: str) -> NodeView:
    """The node of this name or id. Raises NotFound."""
    for node in nodes:
        if wanted in {node.id, node.name}:
            return node
    raise NotFound(f"no node is called {wanted!r}.")
