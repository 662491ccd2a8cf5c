"""Snapshot of the cluster, on which a round decides."""
