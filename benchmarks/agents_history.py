"""Finished jobs with their recorded history, so that a benchmark does not run on empty tables."""

from __future__ import annotations

from benchmarks.servers import connected

EVENTS_EACH = 10
METRICS_EACH = 20

_STATEMENTS = (
    """
    INSERT INTO jobs (id, project, name, job_class, spec, request_digest, state, reason, message, generation,
                      newest_generation, attempt, progress, submitted_at, state_since, started_at, finished_at)
    SELECT 'jhistory' || lpad(n::text, 12, '0'), 'default', 'past-' || n,
           'default/python train_' || n % 20 || '.py',
           jsonb_build_object('name', 'past-' || n, 'run', 'python train_' || n % 20 || '.py',
                              'elastic', '{"min": 1, "max": 8}'::jsonb),
           '', (ARRAY['SUCCEEDED', 'FAILED', 'CANCELLED'])[1 + n % 3],
           (ARRAY['COMPLETED', 'USER_ERROR', 'USER_REQUEST'])[1 + n % 3], 'over', 2, 2, 2,
           '{"epoch": 3, "samples": 90000, "total_samples": 90000, "samples_per_s": 512.5}',
           at, at + interval '3 h', at + interval '1 min', at + interval '3 h'
    FROM (SELECT n, now() - interval '60 d' * (1 - n / ($1 + 1.0)) - interval '4 h' AS at
          FROM generate_series(1, $1::int) AS n) AS past
    """,
    """
    INSERT INTO allocations (job_id, generation, slots, size, device_kind, first_node, master_port, members, stores,
                             started_nodes, reason, message, granted_at, ended_at)
    SELECT id, past, '{"nhistory": [0, 1]}', 2, 'cpu', 'nhistory', 20000, '[]', '{}', 1, 'ALLOCATED', 'began',
           started_at + interval '1 h' * (past - 1), started_at + interval '1 h' * past
    FROM jobs CROSS JOIN generate_series(1, 2) AS past WHERE id LIKE 'jhistory%'
    """,
    f"""
    INSERT INTO events (job_id, at, kind, state, reason, message, generation, data)
    SELECT id, started_at, 'allocate', 'RUNNING', 'PROGRESSING', 'one of the events of a job', 1, '{{"size": 2}}'
    FROM jobs CROSS JOIN generate_series(1, {EVENTS_EACH}) WHERE id LIKE 'jhistory%'
    """,
    """
    INSERT INTO measurements (job_id, generation, global_batch, device_kind, slots, nodes, steps, step_s_sum,
                              step_s_squares, sync_s_sum, local_batch, accumulation, updated_at)
    SELECT id, past, 256, 'cpu', past, 1, 1000, 1000 * (0.02 + 0.08 / past),
           1000 * (0.02 + 0.08 / past) ^ 2, 0.0, 256 / past, 1, finished_at
    FROM jobs CROSS JOIN generate_series(1, 2) AS past WHERE id LIKE 'jhistory%'
    """,
    f"""
    INSERT INTO metrics (job_id, at, generation, epoch, samples, name, value)
    SELECT id, started_at, 1, 0, step * 100, 'loss', 1.0 / step
    FROM jobs CROSS JOIN generate_series(1, {METRICS_EACH}) AS step WHERE id LIKE 'jhistory%'
    """,
    """
    INSERT INTO decisions (job_id, round_id, decided_at, action, reason, message, options)
    SELECT id, 'rhistory', started_at, 'start', 'ALLOCATED', 'one of the decisions about a job', '[]'
    FROM jobs WHERE id LIKE 'jhistory%'
    """,
)


async def fill(url: str, jobs: int) -> None:
    """Store finished jobs, with their allocations, events, measurements, metrics and last decisions."""
    first, *rest = _STATEMENTS
    async with connected(url) as connection:
        async with connection.transaction():
            await connection.execute(first, jobs)
            for statement in rest:
                await connection.execute(statement)
        await connection.execute("ANALYZE")
