"""Allocation of slots to jobs: the table of configurations, the exact solver and placement."""
