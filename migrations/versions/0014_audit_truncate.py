"""the audit log cannot be emptied by TRUNCATE either"""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE FUNCTION refuse_to_empty() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            -- A backup is restored into a new database, whose tables are emptied first.
            IF EXISTS (SELECT 1 FROM audit) THEN
                RAISE EXCEPTION 'the audit log is append-only';
            END IF;
            RETURN NULL;
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER not_emptied BEFORE TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_empty()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER not_emptied ON audit")
    op.execute("DROP FUNCTION refuse_to_empty()")
