"""leadership and quarantines"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "leadership",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("renewed_at", _MOMENT, nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_leadership_only_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leadership")),
    )
    op.create_table(
        "quarantines",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("device", sa.Text(), server_default="", nullable=False),
        sa.Column("grade", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("since", _MOMENT, nullable=False),
        sa.Column("probe_at", _MOMENT, nullable=True),
        sa.Column("probes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("released_at", _MOMENT, nullable=True),
        sa.Column("release_message", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "grade IN ('fatal', 'job_error', 'suspicious')", name=op.f("ck_quarantines_grade_known")
        ),
        sa.CheckConstraint(
            "cause IN ('ecc', 'gone', 'operator', 'slow', 'temperature', 'xid')",
            name=op.f("ck_quarantines_cause_known"),
        ),
        sa.ForeignKeyConstraint(
            ["node_id"], ["nodes.id"], name=op.f("fk_quarantines_node_id_nodes"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quarantines")),
    )
    op.create_index(
        "uq_quarantines_open",
        "quarantines",
        ["node_id", "slot"],
        unique=True,
        postgresql_where=sa.text("released_at IS NULL"),
    )
    op.create_index("ix_quarantines_released", "quarantines", ["released_at"], unique=False)


def downgrade() -> None:
    for table in ("quarantines", "leadership"):
        op.drop_table(table)
