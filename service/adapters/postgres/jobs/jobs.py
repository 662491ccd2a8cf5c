"""Rows of jobs."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import lru_cache

from asyncpg import UniqueViolationError
from pydantic import TypeAdapter

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobProgress
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import FetchedRow, Session, Statement
from service.adapters.postgres.identity.audit import COLUMNS as AUDIT_COLUMNS
from service.adapters.postgres.identity.audit import VALUES as AUDIT_VALUES
from service.adapters.postgres.identity.audit import PostgresAudit
from service.adapters.postgres.jobs.history import StoredHistory
from service.adapters.postgres.tables.core import TERMINAL_SQL, jobs
from service.domain.jobs.job import Job, Switch, class_of
from service.domain.jobs.retries import Failure
from service.domain.shared.errors import InvalidField, NameTaken, NotFound
from service.usecases.identity.projects import no_project
from service.usecases.ports.jobs import Jobs, Submitted

_SWITCH: TypeAdapter[Switch] = TypeAdapter(Switch)
_FAILURES: TypeAdapter[tuple[Failure, ...]] = TypeAdapter(tuple[Failure, ...])
_INSERT = Statement(
    """
    WITH project AS (
        SELECT name FROM projects WHERE name = :project FOR KEY SHARE
    ), job AS (
        INSERT INTO jobs (id, project, name, job_class, spec, idempotency_key, request_digest,
                          state, reason, message, progress, traceparent, owner, waits, submitted_at,
                          state_since)
        SELECT :id, project.name, :name, :job_class, CAST(:spec AS jsonb), :idempotency_key, :request_digest,
               :state, :reason, :message, CAST(:progress AS jsonb), :traceparent, :owner, :waits,
               CAST(:now AS timestamptz), CAST(:now AS timestamptz)
        FROM project
        ON CONFLICT (project, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING id
    ), event AS (
        INSERT INTO events (job_id, at, kind, state, reason, message, generation)
        SELECT id, :now, 'submit', :state, :reason, :message, 0 FROM job
    ), audited AS (
        INSERT INTO audit ({columns}) SELECT {values} FROM job WHERE CAST(:audit_at AS timestamptz) IS NOT NULL
    )
    SELECT project.name AS project, job.id FROM project LEFT JOIN job ON true
    """.format(columns=AUDIT_COLUMNS, values=AUDIT_VALUES.format(project=":project"))  # noqa: S608 - constants
)
"""Insertion of a job with its idempotency key, first event and audit entry in one round trip.

The statement locks the row of the project, so that the project exists until the commit.
"""
_ONE_ADMISSION = Statement("SELECT pg_advisory_xact_lock(hashtext('headway admissions'))")
_SAVE_PRIORITY = Statement(
    "UPDATE jobs SET spec = jsonb_set(spec, '{priority}', to_jsonb(CAST(:priority AS integer))) WHERE id = :id"
)
_SAVE_PROGRESS = Statement(
    """
    UPDATE jobs SET progress = reported.progress
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS reported(id text, progress jsonb) WHERE jobs.id = reported.id
    """
)
_AS_TEXT = ("spec", "progress")
"""Columns that are read as text. Their models parse it directly, which is faster than to build objects first.
"""
COLUMNS = ", ".join(
    f"jobs.{column.name}::text AS {column.name}" if column.name in _AS_TEXT else f"jobs.{column.name}"
    for column in jobs.columns
)
_LOCK_MANY = f"SELECT {COLUMNS} FROM jobs WHERE id = ANY(:jobs) ORDER BY id FOR UPDATE"  # noqa: S608 - constants
_LOCKED = Statement(_LOCK_MANY)
_LOCKED_OF_FREE = Statement(f"{_LOCK_MANY} SKIP LOCKED")
_FIXED = frozenset({"id", "spec", "traceparent", "owner", "submitted_at"})
_SAVED = [one.name for one in fields(Job) if one.name not in _FIXED]
_SAVE = Statement(f"UPDATE jobs SET {', '.join(f'{name} = :{name}' for name in _SAVED)} WHERE id = :id")  # noqa: S608
_FIND = f"""
    SELECT {COLUMNS} FROM jobs
    WHERE (id = :job OR name = :job) AND (CAST(:projects AS text[]) IS NULL OR project = ANY(:projects))
    ORDER BY id = :job DESC, ({TERMINAL_SQL}), submitted_at DESC LIMIT 1
"""  # noqa: S608
_NAMES = Statement(
    """
    SELECT name FROM jobs WHERE CAST(:projects AS text[]) IS NULL OR project = ANY(:projects)
    ORDER BY submitted_at DESC, id DESC LIMIT 200
    """
)
"""The latest job names, one of which is suggested for a mistyped name."""
_LONGEST_NAME = 63
_SUBMITTED = Statement(f"SELECT {COLUMNS} FROM jobs WHERE project = :project AND idempotency_key = :key")  # noqa: S608
_SWITCHING = Statement(
    f"SELECT {COLUMNS} FROM jobs WHERE switch IS NOT NULL ORDER BY id FOR UPDATE SKIP LOCKED"  # noqa: S608
)
_FOUND = Statement(_FIND)
_FOUND_LOCKED = Statement(f"{_FIND} FOR UPDATE")


@lru_cache(maxsize=2048)
def spec_of(stored: str) -> JobSpec:
    """Return a spec from its stored text.

    The specs of live jobs are read in every scheduling round, hence the cache.
    """
    # a newer version may have written it, during an upgrade
    return JobSpec.model_validate_json(stored, extra="ignore")


def row_to_job(row: FetchedRow) -> Job:
    """Return the job in a row with `COLUMNS`."""
    progress = JobProgress.model_validate_json(row.progress)
    return record_of(Job, row, spec=spec_of(row.spec), progress=progress)


async def find_row(
    session: Session, job_id: str, *, lock: bool = False, projects: frozenset[str] | None = None
) -> FetchedRow:
    """Return the row of a job by id or name: the live job of that name, else the newest.

    With `projects`, only jobs of these projects count.

    Raises:
        NotFound: no job matches.
    """
    statement = _FOUND_LOCKED if lock else _FOUND
    seen = None if projects is None else list(projects)
    for row in await session.fetch(statement, job=job_id, projects=seen):
        return row
    names = dict.fromkeys(row.name for row in await session.fetch(_NAMES, projects=seen))
    similar = get_close_matches(job_id[:_LONGEST_NAME], names, n=1)
    hint = f"did you mean {similar[0]}? " if similar else ""
    raise NotFound(f"no job has the id or name {job_id!r}; {hint}`headway ps -a` lists them.")


_INT_MAX = 2**31 - 1  # agents can name any number
_NEVER_ASSIGNED = Statement(
    """
    SELECT jobs.id, one.number FROM unnest(CAST(:ids AS text[]), CAST(:numbers AS int[])) AS one(id, number)
    JOIN jobs ON jobs.id = one.id AND jobs.newest_generation < one.number ORDER BY jobs.id, one.number
    """
)


class PostgresJobs(StoredHistory, Jobs):
    """Jobs in PostgreSQL."""

    def __init__(self, session: Session, audit: PostgresAudit) -> None:
        super().__init__(session)
        self._audit = audit

    async def insert(
        self, job: Job, *, idempotency_key: str | None, request_digest: str, last: bool = False
    ) -> Submitted:
        # With `last`, the statement commits by itself unless a read came first.
        values = {
            "id": job.id,
            "project": job.spec.project,
            "name": job.name,
            "job_class": class_of(job.spec),
            "spec": job.spec.model_dump_json(by_alias=True, exclude_defaults=True),
            "idempotency_key": idempotency_key,
            "request_digest": request_digest,
            "state": job.state,
            "reason": job.reason,
            "message": job.message,
            "progress": job.progress.model_dump_json(exclude_defaults=True),
            "traceparent": job.traceparent,
            "owner": job.owner,
            "waits": job.waits,
            "now": job.submitted_at,
            **self._audit.take(),
        }
        try:
            stored = await (self._session.fetch_alone if last else self._session.fetch)(_INSERT, **values)
        except UniqueViolationError as error:
            return await self._explain_conflict(error, job, idempotency_key)
        if not stored:
            raise InvalidField(
                "project", f"{no_project(job.spec.project)}, or set another `project` in the job file"
            )
        if stored[0].id is not None:
            return Submitted(job, request_digest, created=True)
        assert idempotency_key is not None, "only a key leaves an insert without a row"
        before = await self.submitted_before(job.spec.project, idempotency_key)
        if before is None:
            raise NotFound("the job of this Idempotency-Key was deleted; submit with a new key.")
        return before

    async def submitted_before(self, project: str, idempotency_key: str) -> Submitted | None:
        for row in await self._session.fetch(_SUBMITTED, project=project, key=idempotency_key):
            return Submitted(row_to_job(row), row.request_digest, created=False)
        return None

    async def lock_admissions(self) -> None:
        await self._session.fetch(_ONE_ADMISSION)

    async def _explain_conflict(
        self, error: UniqueViolationError, job: Job, idempotency_key: str | None
    ) -> Submitted:
        """Return the job that this request submitted before, if the conflict is with that job.

        Raises:
            NameTaken: another live job has the name.
        """
        if error.constraint_name != "uq_jobs_live_name":
            raise error
        await self._session.rollback()
        if idempotency_key is not None:
            before = await self.submitted_before(job.spec.project, idempotency_key)
            if before is not None:
                return before
        raise _name_taken(job) from error

    async def lock(self, job_id: str) -> Job:
        return row_to_job(await find_row(self._session, job_id, lock=True))

    async def lock_many(self, job_ids: Sequence[str], *, wait: bool = True) -> dict[str, Job]:
        if not job_ids:
            return {}
        statement = _LOCKED if wait else _LOCKED_OF_FREE
        rows = await self._session.fetch(statement, jobs=list(job_ids))
        return {row.id: row_to_job(row) for row in rows}

    async def save_progress(self, jobs: Sequence[Job]) -> None:
        rows = [
            f'{{"id": {json.dumps(job.id)}, "progress": {job.progress.model_dump_json()}}}' for job in jobs
        ]
        await self._session.fetch(_SAVE_PROGRESS, rows=f"[{', '.join(rows)}]")

    async def never_assigned(self, generations: Collection[tuple[str, int]]) -> list[tuple[str, int]]:
        ids, numbers = [job for job, _ in generations], [min(number, _INT_MAX) for _, number in generations]
        rows = await self._session.fetch(_NEVER_ASSIGNED, ids=ids, numbers=numbers)
        return [(row.id, row.number) for row in rows]

    async def switching(self) -> list[Job]:
        return [row_to_job(row) for row in await self._session.fetch(_SWITCHING)]

    async def save_priority(self, job: Job) -> None:
        await self._session.fetch(_SAVE_PRIORITY, id=job.id, priority=job.spec.priority)

    async def save(self, job: Job) -> None:
        values = {
            **values_of(job),
            "allocation": json.dumps(job.allocation),
            "target": None if job.target is None else json.dumps(job.target),
            "switch": None if job.switch is None else _SWITCH.dump_json(job.switch).decode(),
            "failures": _FAILURES.dump_json(job.failures).decode(),
            "progress": job.progress.model_dump_json(),
        }
        try:
            await self._session.fetch(_SAVE, **values)
        except UniqueViolationError as error:  # a job that had ended is resumed
            if error.constraint_name != "uq_jobs_live_name":
                raise
            raise _name_taken(job) from error


def _name_taken(job: Job) -> NameTaken:
    return NameTaken(
        f"a live job of project {job.spec.project} is named {job.name} already; choose another name or "
        f"cancel it with `headway cancel {job.name}`."
    )
