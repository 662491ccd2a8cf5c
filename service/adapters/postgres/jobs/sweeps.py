"""Rows of sweeps and of their trials."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from headway.contract.spec_parameters import ParameterValue
from headway.contract.spec_sweep import Asha, Sweep
from headway.contract.views.jobs import JobProgress, JobState, Page, Reason
from headway.contract.views.sweeps import SweepSummary, SweepView, TrialView
from service.adapters.postgres.engine.cursors import cursor_after, read_cursor
from service.adapters.postgres.engine.session import FetchedRow, OnSession, Statement
from service.adapters.postgres.jobs.jobs import spec_of
from service.adapters.postgres.tables.core import TERMINAL_SQL
from service.domain.jobs.halving import Halving, RungValues
from service.domain.jobs.sweeps import best_of
from service.domain.shared.errors import InvalidField, NotFound
from service.usecases.identity.projects import no_project
from service.usecases.ports.sweeps import (
    JudgedTrials,
    NewSweep,
    SubmittedSweep,
    SweepQueries,
    SweepRef,
    Sweeps,
    TrialMetric,
    TrialOf,
    TrialReport,
)

_INSERT = Statement(
    """
    WITH project AS (
        SELECT name FROM projects WHERE name = :project FOR KEY SHARE
    ), sweep AS (
        INSERT INTO sweeps (id, project, name, sweep, owner, idempotency_key, request_digest, submitted_at)
        SELECT :id, project.name, :name, CAST(:sweep AS json), :owner, :idempotency_key, :request_digest,
               CAST(:now AS timestamptz)
        FROM project
        ON CONFLICT (project, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING id
    )
    SELECT project.name AS project, sweep.id FROM project LEFT JOIN sweep ON true
    """
)
"""Insertion of a sweep. A second request with the same key waits here until the first has committed."""
_SUBMITTED = Statement(
    "SELECT id, name, request_digest FROM sweeps WHERE project = :project AND idempotency_key = :key"
)
_ADD_TRIALS = Statement(
    """
    INSERT INTO trials (sweep_id, job_id, number)
    SELECT :sweep, job, number FROM unnest(CAST(:jobs AS text[])) WITH ORDINALITY AS one (job, number)
    """
)
_JOBS = Statement("SELECT job_id FROM trials WHERE sweep_id = :sweep ORDER BY number")
_SEEN = "(CAST(:projects AS text[]) IS NULL OR project = ANY(CAST(:projects AS text[])))"
_FIND = Statement(
    f"""
    SELECT id, project FROM sweeps WHERE (id = :sweep OR name = :sweep) AND {_SEEN}
    ORDER BY id = :sweep DESC, submitted_at DESC, id DESC LIMIT 1
    """  # noqa: S608 - constants
)
_NAMES = Statement(
    f"SELECT name FROM sweeps WHERE {_SEEN} ORDER BY submitted_at DESC, id DESC LIMIT 200"  # noqa: S608
)
_LONGEST_NAME = 63
_COLUMNS = "id, name, project, owner, submitted_at, sweep::text AS sweep"
_LIST = Statement(
    f"""
    SELECT {_COLUMNS} FROM sweeps
    WHERE {_SEEN} AND (CAST(:after_id AS text) IS NULL OR (submitted_at, id) < (CAST(:after_at AS timestamptz), :after_id))
    ORDER BY submitted_at DESC, id DESC LIMIT :most
    """  # noqa: S608
)
_STATES = Statement(
    """
    SELECT sweep_id, state, count(*) AS number FROM trials JOIN jobs ON jobs.id = trials.job_id
    WHERE sweep_id = ANY(CAST(:sweeps AS text[])) GROUP BY sweep_id, state
    """
)
_ONE = Statement(f"SELECT {_COLUMNS} FROM sweeps WHERE id = :sweep")  # noqa: S608
_TRIALS = Statement(
    """
    SELECT number, lowest, highest, jobs.id, name, state, reason, message, spec::text AS spec, progress::text AS progress,
           started_at, finished_at
    FROM trials JOIN jobs ON jobs.id = trials.job_id WHERE sweep_id = :sweep ORDER BY number
    """
)
_OF_JOB = Statement(
    "SELECT sweeps.id, name, number FROM trials JOIN sweeps ON sweeps.id = sweep_id WHERE job_id = :job"
)
_METRICS_OF = Statement(
    """
    SELECT job_id, sweep ->> 'metric' AS metric, (sweep -> 'stop' -> 'asha')::text AS asha,
           (SELECT count(*) FROM rung_values WHERE rung_values.job_id = trials.job_id) AS rungs
    FROM trials JOIN sweeps ON sweeps.id = trials.sweep_id
    WHERE job_id = ANY(CAST(:jobs AS text[])) AND sweep ->> 'metric' IS NOT NULL
    """
)
_ADD_EXTREMES = Statement(
    """
    UPDATE trials SET lowest = least(trials.lowest, new.lowest), highest = greatest(trials.highest, new.highest)
    FROM unnest(CAST(:jobs AS text[]), CAST(:lowest AS float8[]), CAST(:highest AS float8[])) AS new (job_id, lowest, highest)
    WHERE trials.job_id = new.job_id
        AND (trials.lowest IS NULL OR new.lowest < trials.lowest OR new.highest > trials.highest)
    """
)
_ADD_RUNG_VALUES = Statement(
    """
    INSERT INTO rung_values (job_id, rung, value)
    SELECT * FROM unnest(CAST(:jobs AS text[]), CAST(:rungs AS integer[]), CAST(:rung_values AS float8[]))
    ON CONFLICT (job_id, rung) DO NOTHING
    """
)
_STOPPING = Statement(
    f"""
    SELECT DISTINCT sweep_id FROM trials JOIN jobs ON jobs.id = trials.job_id JOIN sweeps ON sweeps.id = trials.sweep_id
    WHERE NOT ({TERMINAL_SQL}) AND stopped_at IS NULL AND sweep -> 'stop' ->> 'asha' IS NOT NULL
        AND EXISTS (SELECT FROM rung_values WHERE rung_values.job_id = trials.job_id)
    ORDER BY sweep_id
    """  # noqa: S608
)
_RULE = Statement(
    """
    SELECT sweep ->> 'metric' AS metric, sweep ->> 'goal' AS goal, (sweep -> 'stop' -> 'asha')::text AS asha
    FROM sweeps WHERE id = :sweep AND sweep -> 'stop' ->> 'asha' IS NOT NULL
    """
)
_RUNG_VALUES = Statement(
    f"""
    SELECT number, trials.job_id, array_agg(value ORDER BY rung) AS reached,
           stopped_at IS NULL AND NOT ({TERMINAL_SQL}) AS judged
    FROM trials JOIN jobs ON jobs.id = trials.job_id JOIN rung_values ON rung_values.job_id = trials.job_id
    WHERE sweep_id = :sweep GROUP BY number, trials.job_id, stopped_at, jobs.state ORDER BY number
    """  # noqa: S608
)
_NOTE_STOPPED = Statement(
    "UPDATE trials SET stopped_at = :now WHERE job_id = ANY(CAST(:jobs AS text[])) AND stopped_at IS NULL"
)


class PostgresSweeps(OnSession, Sweeps):
    """Sweeps in PostgreSQL."""

    async def insert(
        self, sweep: NewSweep, *, idempotency_key: str | None, request_digest: str
    ) -> SubmittedSweep:
        stored = await self._session.fetch(
            _INSERT,
            id=sweep.id,
            project=sweep.project,
            name=sweep.name,
            sweep=sweep.sweep.model_dump_json(),
            owner=sweep.owner,
            idempotency_key=idempotency_key,
            request_digest=request_digest,
            now=sweep.submitted_at,
        )
        if not stored:
            raise InvalidField(
                "project", f"{no_project(sweep.project)}, or set another `project` in the job file"
            )
        if stored[0].id is not None:
            return SubmittedSweep(sweep.id, sweep.name, request_digest, created=True)
        assert idempotency_key is not None, "only a key leaves an insert without a row"
        before = await self.submitted_before(sweep.project, idempotency_key)
        if before is None:
            raise NotFound("the sweep of this Idempotency-Key was deleted; submit with a new key.")
        return before

    async def submitted_before(self, project: str, idempotency_key: str) -> SubmittedSweep | None:
        for row in await self._session.fetch(_SUBMITTED, project=project, key=idempotency_key):
            return SubmittedSweep(row.id, row.name, row.request_digest, created=False)
        return None

    async def add_trials(self, sweep_id: str, job_ids: Sequence[str]) -> None:
        await self._session.fetch(_ADD_TRIALS, sweep=sweep_id, jobs=list(job_ids))

    async def jobs_of(self, sweep_id: str) -> list[str]:
        return [row.job_id for row in await self._session.fetch(_JOBS, sweep=sweep_id)]

    async def metrics_of(self, job_ids: Sequence[str]) -> dict[str, TrialMetric]:
        rows = await self._session.fetch(_METRICS_OF, jobs=list(job_ids))
        return {row.job_id: TrialMetric(row.metric, _asha(row.asha), row.rungs) for row in rows}

    async def add_values(self, reports: Sequence[TrialReport]) -> None:
        await self._session.fetch(
            _ADD_EXTREMES,
            jobs=[one.job_id for one in reports],
            lowest=[one.lowest for one in reports],
            highest=[one.highest for one in reports],
        )
        reached = [(one.job_id, rung, value) for one in reports for rung, value in one.rungs.items()]
        if reached:
            jobs, rungs, values = (list(column) for column in zip(*reached, strict=True))
            await self._session.fetch(_ADD_RUNG_VALUES, jobs=jobs, rungs=rungs, rung_values=values)

    async def stopping(self) -> list[str]:
        return [row.sweep_id for row in await self._session.fetch(_STOPPING)]

    async def judged(self, sweep_id: str) -> JudgedTrials | None:
        for rule in await self._session.fetch(_RULE, sweep=sweep_id):
            asha = _asha(rule.asha)
            assert asha is not None, "the statement asks for it"
            rows = await self._session.fetch(_RUNG_VALUES, sweep=sweep_id)
            return JudgedTrials(
                Halving(metric=rule.metric, minimise=rule.goal == "minimise", asha=asha),
                [RungValues(row.number, row.reached, judged=row.judged) for row in rows],
                {row.number: row.job_id for row in rows},
            )
        return None

    async def note_stopped(self, job_ids: Sequence[str], now: datetime) -> None:
        await self._session.fetch(_NOTE_STOPPED, jobs=list(job_ids), now=now)


class PostgresSweepQueries(OnSession, SweepQueries):
    """Views of sweeps in PostgreSQL."""

    async def find(self, sweep: str, projects: frozenset[str] | None) -> SweepRef:
        seen = None if projects is None else sorted(projects)
        for row in await self._session.fetch(_FIND, sweep=sweep, projects=seen):
            return SweepRef(row.id, row.project)
        names = dict.fromkeys(row.name for row in await self._session.fetch(_NAMES, projects=seen))
        similar = get_close_matches(sweep[:_LONGEST_NAME], names, n=1)
        hint = f"did you mean {similar[0]}? " if similar else ""
        raise NotFound(f"no sweep has the id or name {sweep!r}; {hint}`headway sweep` lists them.")

    async def list_sweeps(
        self, projects: frozenset[str] | None, *, limit: int, cursor: str | None
    ) -> Page[SweepSummary]:
        at, row_id = (None, None) if cursor is None else read_cursor(cursor)
        seen = None if projects is None else sorted(projects)
        rows = await self._session.fetch(_LIST, projects=seen, after_at=at, after_id=row_id, most=limit + 1)
        shown = rows[:limit]
        states: dict[str, dict[JobState, int]] = {row.id: {} for row in shown}
        for row in await self._session.fetch(_STATES, sweeps=list(states)):
            states[row.sweep_id][JobState(row.state)] = row.number
        return Page(
            items=[SweepSummary(**_about(row), states=states[row.id]) for row in shown],
            next_cursor=cursor_after(rows, limit, "submitted_at"),
        )

    async def sweep(self, sweep_id: str) -> SweepView:
        rows = await self._session.fetch(_ONE, sweep=sweep_id)
        if not rows:
            raise NotFound(f"no sweep has the id {sweep_id!r}; `headway sweep` lists them.")
        about = _about(rows[0])
        sweep: Sweep = about["sweep"]
        trials = [_trial(row, sweep) for row in await self._session.fetch(_TRIALS, sweep=sweep_id)]
        states: dict[JobState, int] = {}
        for one in trials:
            states[one.state] = states.get(one.state, 0) + 1
        values = {one.number: one.value for one in trials if one.value is not None}
        return SweepView(**about, states=states, best=best_of(sweep, values), trials=trials)

    async def of_job(self, job_id: str) -> TrialOf | None:
        for row in await self._session.fetch(_OF_JOB, job=job_id):
            return TrialOf(row.id, row.name, row.number)
        return None


def _about(row: FetchedRow) -> dict[str, Any]:
    # a newer version may have written the sweep, during an upgrade
    return {**dict(row), "sweep": Sweep.model_validate_json(row.sweep, extra="ignore")}


def _asha(text: str | None) -> Asha | None:
    # a newer version may have written it, during an upgrade
    return None if text is None else Asha.model_validate_json(text, extra="ignore")


def _trial(row: FetchedRow, sweep: Sweep) -> TrialView:
    stored = spec_of(row.spec).parameters
    parameters: dict[str, ParameterValue] = {
        name: stored[name] for name in sweep.parameters if name in stored
    }
    return TrialView(
        number=row.number,
        job_id=row.id,
        name=row.name,
        state=JobState(row.state),
        reason=Reason(row.reason),
        message=row.message,
        parameters=parameters,
        value=row.lowest if sweep.goal == "minimise" else row.highest,
        metrics=JobProgress.model_validate_json(row.progress, extra="ignore").metrics,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )
