"""Rows of what-if simulations."""
