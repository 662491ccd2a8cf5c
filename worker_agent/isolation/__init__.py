"""Isolation of jobs from one another and from the agent."""
