"""Rows of uploaded bundles."""
