"""Rows of webhooks and of their messages."""
