"""Decisions about machines: which to rent, keep, lease and recommend."""
