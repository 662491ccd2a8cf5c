"""Routes for budgets, usage and renting."""
