"""Rows of users, projects, tokens, secrets and the audit log."""
