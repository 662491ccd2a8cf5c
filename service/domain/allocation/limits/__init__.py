"""Limits on a round: quotas, budgets, deadlines and risk."""
