"""Allocation policies. Each turns a round's input into an allocation problem, and its solution into choices."""
