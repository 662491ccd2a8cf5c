"""Readers of the pages. They read the same data as the API, in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from pkgutil import iter_modules

from headway.contract.views.decisions import ExplanationView, RoundView
from headway.contract.views.forecasts import ForecastView
from headway.contract.views.jobs import EventView, JobState, JobView
from headway.contract.views.nodes import NodeView
from service.api.http.context import ApiContext
from service.console import pages
from service.console.html.fragments import Content
from service.console.html.palette import Palette, colour_of
from service.console.pages.cluster import cluster_page
from service.console.pages.job import JobViews, job_page
from service.console.pages.jobs import jobs_fragments
from service.console.pages.node import node_fragments
from service.console.pages.page import Key, LivePage, Memory, Viewer, pager
from service.console.pages.policy import policy_fragment
from service.console.pages.rounds import rounds_page
from service.console.pages.simulations import list_fragments, simulation_fragments
from service.console.pages.sweep import sweep_fragments
from service.console.pictures.slot_geometry import DEFAULT_WINDOW, WINDOWS_S, strip_at
from service.console.pictures.slot_picture import history_picture
from service.console.pictures.slot_reader import read_history
from service.domain.shared.errors import NotFound
from service.usecases.jobs.explanations import explain_job
from service.usecases.jobs.forecasts import forecast_job
from service.usecases.ports.jobs import JobFilter
from service.usecases.ports.transactions import Transaction
from service.usecases.rounds.policy_choice import view_cluster

_PER_PAGE = 50
_JOBS_OF_CLUSTER = 100
_EVENTS = 200
_POINTS = 400
_FORESIGHT_S = 10.0
"""Interval in seconds between forecasts and explanations of a job, which cost a round. A change of its state
or size also triggers new ones."""
_COLOURED = 200
"""Maximum number of jobs with slots that get their colours before other jobs of a page."""


PAGES: Mapping[str, LivePage] = {
    page.name: page
    for found in iter_modules(pages.__path__, f"{pages.__name__}.")
    if isinstance(page := vars(import_module(found.name)).get("PAGE"), LivePage)
}
"""The pages that are added by their modules, by name."""


class PageReaders:
    """The readers of all pages."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._palette = Palette()
        self._read: dict[str, Callable[[Key, Memory], Awaitable[list[Content]]]] = {
            "cluster": self._cluster,
            "jobs": self._jobs,
            "job": self._job,
            "node": self._node,
            "rounds": self._rounds,
            "simulations": self._simulations,
            "simulation": self._simulation,
            "sweep": self._sweep,
            **{name: partial(page.read, context) for name, page in PAGES.items()},
        }

    async def read(self, key: Key, memory: Memory) -> list[Content]:
        """Return the fragments of a page.

        Raises:
            NotFound: the page or its subject does not exist.
        """
        read = self._read.get(key.page)
        if read is None:
            raise NotFound(f"there is no page {key.page!r}.")
        return await read(key, memory)

    async def _cluster(self, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG002  # all readers have the same arguments
        context = self._context
        filters = JobFilter(state=None, name=None, project=None, live_only=True, projects=key.sight.projects)
        async with context.transactions.begin() as tx:
            cluster = await view_cluster(
                tx, context.policies, context.usd_per_slot_h, seen=key.sight.projects
            )
            nodes = await tx.node_queries.list_nodes(context.now(), context.silence, seen=key.sight.projects)
            jobs = await tx.job_queries.list_jobs(filters, limit=_JOBS_OF_CLUSTER, cursor=None)
            latest = await _latest(tx, key.sight)
            ids = _held(jobs.items)
            holders = (slot.job_id for node in nodes for slot in node.slots if slot.job_id)
            colours = await self._colours(tx, [*ids, *holders])
        page = cluster_page(cluster, nodes, jobs.items, latest, context.usd_per_slot_h, colours)
        return page.contents()

    async def _jobs(self, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG002
        context = self._context
        live = key.state in {"", "live"}
        state = None if live or key.state == "all" else JobState(key.state)
        filters = JobFilter(
            state=state,
            project=key.project or None,
            owner=key.owner or None,
            live_only=live,
            projects=key.sight.projects,
        )
        async with context.transactions.begin() as tx:
            page = await tx.job_queries.list_jobs(filters, limit=_PER_PAGE, cursor=key.cursor or None)
            ids = [one.id for one in page.items]
            sizes = await tx.job_queries.sizes(ids)
            colours = await self._colours(tx, _held(page.items))
        rows = jobs_fragments(page, sizes, context.now(), colours)
        return [*rows, pager(key, page.next_cursor)]

    async def _colours(self, tx: Transaction, drawn: Iterable[str]) -> dict[str, int]:
        """Return the colours of the jobs of a page. Running jobs differ while there are enough colours."""
        return self._palette.colours(await tx.job_queries.holding(_COLOURED), drawn)

    async def _job(self, key: Key, memory: Memory) -> list[Content]:
        context = self._context
        events: list[EventView] = memory.setdefault("events", [])
        async with context.transactions.begin() as tx:
            job = await tx.job_queries.job(key.about)
            while True:
                after = events[-1].sequence if events else 0
                page = await tx.job_queries.events(job.id, after=after, limit=500)
                events += page.items
                del events[:-_EVENTS]
                if page.next_cursor is None:
                    break
            if memory.get("series_at") != job.progress.samples:
                memory["series"] = await tx.job_queries.series(job.id, _POINTS)
                memory["series_at"] = job.progress.samples
            sizes = (await tx.job_queries.sizes([job.id])).get(job.id, [])
            if "trial_of" not in memory:
                memory["trial_of"] = await tx.sweep_queries.of_job(job.id)
            colours = await self._colours(tx, _held([job]))
        now = context.now()
        explanation, forecast = await self._foresight(
            job.id, (job.state, job.size, job.message, *_known(job)), memory, now
        )
        views = JobViews(
            job=job,
            present=job.present or job.message,
            colour=colour_of(colours, job.id),
            explanation=explanation,
            forecast=forecast,
            events=list(events),
            sizes=sizes,
            series=memory["series"],
            trial_of=memory["trial_of"],
        )
        return job_page(views, may_control=key.sight.may_control, now=now).contents()

    async def _foresight(
        self, job_id: str, of: tuple[object, ...], memory: Memory, now: datetime
    ) -> tuple[ExplanationView, ForecastView]:
        kept = memory.get("foresight")
        if kept is not None and kept[0] == of and now - kept[1] < timedelta(seconds=_FORESIGHT_S):
            return kept[2], kept[3]
        prices = self._context.usd_per_slot_h
        async with self._context.transactions.begin() as tx:
            explanation = await explain_job(tx, job_id)
            view = await tx.job_queries.job(job_id)
        async with self._context.transactions.begin() as tx:
            forecast = await forecast_job(tx, view, usd_per_slot_h=prices, now=now)
        memory["foresight"] = (of, now, explanation, forecast)
        return explanation, forecast

    async def _node(self, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG002
        node = node_of(await self._nodes(key.sight), key.about)
        history, colours = await self._history(key, node.id)
        return [*node_fragments(node, may_operate=key.sight.may_operate, colours=colours), *history]

    async def _history(
        self, key: Key, node_id: str | None = None, drawn: Iterable[str] = ()
    ) -> tuple[list[Content], dict[str, int]]:
        """Return the chart of slots over time, and the colours of its jobs and of further jobs of the page."""
        strip = strip_at(self._context.now(), WINDOWS_S.get(key.window, WINDOWS_S[DEFAULT_WINDOW]))
        async with self._context.transactions.begin() as tx:
            views = await read_history(tx, strip, seen=key.sight.projects, only=node_id)
            colours = await self._colours(tx, [*views.jobs(), *drawn])
        picture = await asyncio.to_thread(history_picture, views, strip, key.window, colours)
        return picture.contents(), colours

    async def _nodes(self, sight: Viewer) -> list[NodeView]:
        async with self._context.transactions.begin() as tx:
            return await tx.node_queries.list_nodes(
                self._context.now(), self._context.silence, seen=sight.projects
            )

    async def _rounds(self, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG002
        context = self._context
        async with context.transactions.begin() as tx:
            page = await tx.round_queries.rounds(
                limit=_PER_PAGE, cursor=key.cursor or None, seen=key.sight.projects
            )
            cluster = await view_cluster(
                tx, context.policies, context.usd_per_slot_h, seen=key.sight.projects
            )
            changed = {change.job_id for one in page.items for change in one.changes}
        history, colours = await self._history(key, drawn=sorted(changed))
        policy = policy_fragment(cluster, may_operate=key.sight.may_operate)
        return [policy, *history, *rounds_page(page.items, colours).contents(), pager(key, page.next_cursor)]

    async def _simulations(self, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG002
        async with self._context.transactions.begin() as tx:
            page = await tx.simulations.page(
                limit=_PER_PAGE, cursor=key.cursor or None, seen=key.sight.projects
            )
        return [*list_fragments(page.items), pager(key, page.next_cursor)]

    async def _simulation(self, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG002
        async with self._context.transactions.begin() as tx:
            view = await tx.simulations.get(key.about, seen=key.sight.projects)
        return simulation_fragments(view)

    async def _sweep(self, key: Key, memory: Memory) -> list[Content]:  # noqa: ARG002
        async with self._context.transactions.begin() as tx:
            view = await tx.sweep_queries.sweep(key.about)
        return await asyncio.to_thread(
            sweep_fragments, view, may_control=key.sight.may_control, order=key.order
        )


def _held(jobs: Iterable[JobView]) -> list[str]:
    """Return the ids of the jobs that ever held slots, which alone have colours."""
    return [one.id for one in jobs if one.started_at is not None]


def _known(job: JobView) -> tuple[bool, ...]:
    """Return the facts on which a job's forecast depends: whether its length and its speed are known."""
    return job.progress.work_total is None, job.progress.samples_per_s is None


async def _latest(tx: Transaction, sight: Viewer) -> RoundView | None:
    try:
        return await tx.round_queries.round("latest", seen=sight.projects)
    except NotFound:
        return None


def node_of(nodes: list[NodeView], wanted: str) -> NodeView:
    """Return the node of a name or id. Raise NotFound if there is none."""
    for node in nodes:
        if wanted in {node.id, node.name}:
            return node
    raise NotFound(f"no node is called {wanted!r}.")
