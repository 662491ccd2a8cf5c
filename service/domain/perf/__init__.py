"""How fast jobs make progress at each size."""
