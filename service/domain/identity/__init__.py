"""Roles, sign-in rules and rate limits."""
