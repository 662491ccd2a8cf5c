"""tickets with which ranks have requests to the object storage signed"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "storage_tickets",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_storage_tickets")),
        sa.ForeignKeyConstraint(
            ["node_id"], ["nodes.id"], name=op.f("fk_storage_tickets_node_id_nodes"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_storage_tickets_job_id_jobs"), ondelete="CASCADE"
        ),
    )
    op.create_index(op.f("ix_storage_tickets_node_id"), "storage_tickets", ["node_id"])
    op.create_index(op.f("ix_storage_tickets_job_id"), "storage_tickets", ["job_id"])
    op.create_index(op.f("ix_storage_tickets_expires_at"), "storage_tickets", ["expires_at"])


def downgrade() -> None:
    op.drop_table("storage_tickets")
