"""Retention, thinning, monitoring and diagnosis."""
