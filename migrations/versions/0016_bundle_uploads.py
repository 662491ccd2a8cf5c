"""who uploaded a bundle, and which jobs start from it: others neither read nor run it"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.adapters.postgres.online import create_index_online

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_online(op, "ix_jobs_bundle", "jobs", [sa.text("(spec ->> 'bundle')")])
    op.create_table(
        "bundle_uploads",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("uploader", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "uploader", name=op.f("pk_bundle_uploads")),
        sa.ForeignKeyConstraint(
            ["digest"],
            ["bundles.digest"],
            name=op.f("fk_bundle_uploads_digest_bundles"),
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    op.drop_table("bundle_uploads")
    op.drop_index("ix_jobs_bundle", "jobs")
