"""The fault run: a real cluster, random faults, and a checker that looks only from outside. See docs/reliability.md."""
