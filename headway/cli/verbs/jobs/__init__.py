"""Verbs about jobs: submit, follow, explain, simulate."""
