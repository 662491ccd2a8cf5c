"""leave room in the pages of jobs and nodes, whose rows are updated all the time: an update that stays in its page touches no index"""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Holds for rows to come; those that are there move as they are updated. Nobody waits for it but a vacuum.
    op.execute("ALTER TABLE jobs SET (fillfactor = 70)")
    op.execute("ALTER TABLE nodes SET (fillfactor = 70)")


def downgrade() -> None:
    op.execute("ALTER TABLE nodes RESET (fillfactor)")
    op.execute("ALTER TABLE jobs RESET (fillfactor)")
