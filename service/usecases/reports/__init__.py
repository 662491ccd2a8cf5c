"""Use cases that process agents' reports."""
