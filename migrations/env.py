"""Alembic's entry: migrations run on the connection that the service hands in."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

from service.adapters.postgres import (  # noqa: F401  # their tables are in the metadata
    ledger_tables,
    money_tables,
    reliability_tables,
)
from service.adapters.postgres.tables import metadata

connection = context.config.attributes["connection"]
# First the turn, however long another migrator takes; the limit is for tables: a migration must not
# queue behind a long transaction and block every other statement meanwhile.
connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('headway-migrations'))"))
connection.execute(text("SET LOCAL lock_timeout = '5s'"))
context.configure(connection=connection, target_metadata=metadata, compare_type=True)
with context.begin_transaction():
    context.run_migrations()
