"""Tables of hosts and of the connections between them. `migrations/` must produce exactly these."""

from __future__ import annotations

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

from service.adapters.postgres.tables.core import Moment, metadata

host_facts = Table(
    "host_facts",
    metadata,
    Column("node_id", Text, ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
    Column("source_address", Text, nullable=False),
    Column("facts", JSONB, nullable=False),
    Column("probe_key", Text, nullable=False),
    Column("clock_ahead_s", Float),
    Column("reported_at", Moment, nullable=False),
    Column("slow_link", Text, nullable=False, server_default=""),
    Column("suspected_at", Moment),
    Column("doubted_at", Moment),
)
"""Hosts as their agents described them when they joined. `source_address` is that of the request.

`slow_link` says what was measured of a slow link, `suspected_at` when a job last had cause to have it measured, and
`doubted_at` when a link that is not marked was first measured as slow.
"""

host_links = Table(
    "host_links",
    metadata,
    Column("source_id", Text, ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
    Column("target_id", Text, ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
    Column("address", Text, nullable=False),
    Column("port", Integer, nullable=False),
    Column("failure", Text, nullable=False),
    Column("since", Moment, nullable=False),
    Column("probed_at", Moment, nullable=False),
    Column("job_at", Moment),
    Column("transferred_at", Moment),
    Column("connect_s", Float),
    Column("bytes_per_s", Float),
    Index("ix_host_links_target", "target_id"),
    Index("ix_host_links_failing", "source_id", postgresql_where=text("failure <> ''")),
)
"""One direction of a connection between two nodes: the last probe, and the last failure that a job met (`job_at`)."""
