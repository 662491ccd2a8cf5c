"""Sharded models (FSDP2) that change size in place: layouts of shards, and their transfer between two sets of ranks."""
