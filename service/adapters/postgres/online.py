"""What a migration does beside traffic: indices that are built while others write, and the end of support for old code.

CONTRIBUTING.md has the rules for migrations; a test reads every migration and holds it to them.
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
    """Build an index while others read and write, however long that takes.

    It waits for transactions that are open, and blocks none, so no time limit holds here. What is left of a try that
    was broken off is dropped first: PostgreSQL keeps it as an index that nothing uses.
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
    """From here on, code that was written for a revision before this one must not start.

    A migration that takes away what older code uses says so with this; the expanding ones do not.
    """
    op.execute(text("UPDATE database_state SET oldest_revision = :revision").bindparams(revision=revision))
