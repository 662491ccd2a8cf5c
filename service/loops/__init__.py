"""Background loops.

Each loop's `run_once` is one unit of work; `runner` implements repetition, interval and stop.
"""
