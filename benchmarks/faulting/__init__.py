"""The fault run: a live cluster, random faults, and a checker that uses only outside evidence. See docs/reliability.md."""
