"""Snapshots for scheduling rounds, their decisions, and the commands that follow."""
