"""Alembic's entry: migrations run on the connection that the service hands in, each in a transaction of its own."""

from __future__ import annotations

from alembic import context

from service.adapters.postgres.tables import (  # noqa: F401  # their tables are in the metadata
    identity,
    links,
    rental,
    upkeep,
)
from service.adapters.postgres.tables.core import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    compare_type=True,
    transaction_per_migration=True,  # what one has locked is free again before the next one begins
)
with context.begin_transaction():
    context.run_migrations()
