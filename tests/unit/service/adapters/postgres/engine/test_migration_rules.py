"""Every migration after the initial one can run beside the version before it: the rules of CONTRIBUTING.md, read off its SQL."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from alembic import op
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory

from service.adapters.postgres.engine.online import create_index_online, end_support_below
from service.adapters.postgres.engine.schema import alembic_config

INITIAL = "0001"
SCRIPTS = [
    script
    for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()
    if script.revision > INITIAL
]
TAKES_AWAY = {
    "drops something that older code uses": r"\bDROP (TABLE|COLUMN)\b",
    "renames something that older code uses": r"\bRENAME\b",
    "changes a type, which rewrites the table": r"\bALTER COLUMN \S+ TYPE\b",
    "refuses rows that older code writes": r"\bSET NOT NULL\b|\bADD COLUMN (?!.*\bDEFAULT\b).*\bNOT NULL\b",
    "drops a default that older code relies on": r"\bDROP DEFAULT\b",
}
ENDS_SUPPORT = r"\bUPDATE database_state SET oldest_revision\b"


def statements_of(upgrade: Callable[[], None]) -> list[str]:
    """Return the statements of a migration, a line each."""
    written = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql", opts={"as_sql": True, "output_buffer": written}
    )
    with Operations.context(context):
        upgrade()
    return [" ".join(one.split()) for one in written.getvalue().split(";") if one.strip()]


def broken_rules(upgrade: Callable[[], None]) -> list[str]:
    """Return the rules that a migration breaks, in words."""
    statements = statements_of(upgrade)
    own = {found[1] for one in statements if (found := re.match(r"CREATE TABLE (\S+)", one))}
    contracts = any(re.search(ENDS_SUPPORT, one) for one in statements)
    broken = []
    for one in statements:
        if not contracts:
            broken += [what for what, pattern in TAKES_AWAY.items() if re.search(pattern, one)]
        index = re.match(r"CREATE (UNIQUE )?INDEX (?!CONCURRENTLY).*? ON (\S+)", one)
        if index is not None and index[2] not in own:
            broken.append(f"builds an index of {index[2]} while nobody can write")
        check = re.match(r"ALTER TABLE (\S+) ADD CONSTRAINT (?!.*\bNOT VALID\b)", one)
        if check is not None and check[1] not in own:
            broken.append(f"checks all of {check[1]} while nobody can write")
    return broken


def test_migrations_run_beside_the_version_before_them() -> None:
    assert {script.revision: broken_rules(script.module.upgrade) for script in SCRIPTS} == {
        script.revision: [] for script in SCRIPTS
    }


def test_numbers_follow_one_another() -> None:
    """Versions compare numbers to find out whether they can work with a schema."""
    numbers = sorted(script.revision for script in SCRIPTS)
    assert [INITIAL, *numbers] == [f"{number:04}" for number in range(1, len(numbers) + 2)]


@pytest.mark.parametrize(
    ("upgrade", "said"),
    [
        (lambda: op.drop_column("jobs", "message"), "drops something"),
        (lambda: op.drop_table("jobs"), "drops something"),
        (lambda: op.rename_table("jobs", "tasks"), "renames"),
        (lambda: op.alter_column("jobs", "name", new_column_name="title"), "renames"),
        (lambda: op.alter_column("jobs", "name", type_=sa.Integer()), "changes a type"),
        (lambda: op.alter_column("jobs", "retry_at", nullable=False), "refuses rows"),
        (lambda: op.add_column("jobs", sa.Column("x", sa.Text(), nullable=False)), "refuses rows"),
        (lambda: op.create_index("ix_jobs_x", "jobs", ["x"]), "builds an index of jobs"),
        (lambda: op.create_check_constraint("known", "jobs", "x > 0"), "checks all of jobs"),
    ],
)
def test_what_older_code_would_not_survive_is_found(upgrade: Callable[[], None], said: str) -> None:
    assert [one for one in broken_rules(upgrade) if one.startswith(said)]


def test_what_may_be_done_is_let_through() -> None:
    def expands() -> None:
        op.create_table("new", sa.Column("id", sa.Text(), nullable=False))
        op.create_index("ix_new_id", "new", ["id"])
        op.add_column("jobs", sa.Column("x", sa.Text(), nullable=False, server_default=""))
        op.add_column("jobs", sa.Column("y", sa.Text(), nullable=True))
        op.create_check_constraint("known", "jobs", "x > 0", postgresql_not_valid=True)
        create_index_online(op, "ix_jobs_x", "jobs", ["x"])

    def contracts() -> None:
        end_support_below(op, "0099")
        op.drop_column("jobs", "x")

    assert broken_rules(expands) == []
    assert broken_rules(contracts) == []
