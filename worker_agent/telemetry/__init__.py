"""Metrics and traces of the agent."""
