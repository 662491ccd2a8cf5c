"""Rows of nodes, their credentials and quarantines."""
