"""Use cases about the ledger and budgets."""
