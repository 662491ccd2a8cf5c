"""Use cases that run in the background: retention, sweeps, restoration, diagnosis."""
