"""Routes for what-if simulations."""
