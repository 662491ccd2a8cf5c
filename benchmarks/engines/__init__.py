"""Batch systems that run for real on one host."""
