"""Lifecycle of a job: states, members, failures and retries."""
