"""Steps of migrations that run while the service works: building indices, and ending the support of old code.

CONTRIBUTING.md has the rules for migrations; a test checks every migration against them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alembic.operations import Operations
from sqlalchemy import text


def create_index_online(
    op: Operations,
    name: str,
    table: str,
    columns: Sequence[Any],
    *,
    unique: bool = False,
    where: str | None = None,
) -> None:
    """Build an index while other processes read and write.

    The build waits for open transactions and blocks none, so no time limit applies. PostgreSQL keeps the
    remains of an interrupted build as an invalid index; this function drops them first.
    """
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        op.execute("SET statement_timeout = 0")
        op.drop_index(name, table, if_exists=True, postgresql_concurrently=True)
        op.create_index(
            name,
            table,
            columns,
            unique=unique,
            postgresql_concurrently=True,
            postgresql_where=None if where is None else text(where),
        )
        op.execute("RESET lock_timeout")
        op.execute("RESET statement_timeout")


def end_support_below(op: Operations, revision: str) -> None:
    """Refuse the start of code that was written for a revision before `revision`.

    A migration that removes something that older code uses calls this. A migration that only adds does not.
    """
    op.execute(text("UPDATE database_state SET oldest_revision = :revision").bindparams(revision=revision))
