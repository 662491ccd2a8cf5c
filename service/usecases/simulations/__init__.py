"""Use cases about what-if simulations."""
