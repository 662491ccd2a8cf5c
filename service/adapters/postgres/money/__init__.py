"""Rows of leases, charges and budgets."""
