"""Verbs about people, projects, tokens and secrets."""
