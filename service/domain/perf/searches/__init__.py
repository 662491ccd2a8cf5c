"""Searches over configurations of a job: where to measure next, and the front of time and cost."""
