"""Rows of jobs, their slots and their history."""
