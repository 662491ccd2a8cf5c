"""Use cases about object storage: bundles, logs, checkpoints, output files."""
