"""Benchmarks: `python -m benchmarks.NAME --json`. Recorded figures are in `docs/benchmarks.md`."""
