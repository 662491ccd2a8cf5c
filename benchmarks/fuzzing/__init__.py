"""Fuzzing of a running service and of its parsers. See `benchmarks.fuzz`."""
