"""The schema of version 0.1, in the SQL file beside this module: a blank line ends each statement."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    statements = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8").split(";\n\n")
    for statement in statements:
        op.execute(statement.strip().removesuffix(";"))


def downgrade() -> None:
    connection = op.get_bind()
    tables = connection.exec_driver_sql(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
    )
    for (table,) in tables.all():
        op.execute(f'DROP TABLE "{table}" CASCADE')
    op.execute("DROP FUNCTION refuse_to_forget()")
    op.execute("DROP FUNCTION refuse_to_empty()")
