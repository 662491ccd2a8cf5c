"""Allocation policies: each a small file that turns a round's input into a problem, and its solution into choices."""
