"""Spot machines: cost of interruptions, learned rates, and the choice between the markets."""
