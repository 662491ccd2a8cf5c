"""Interfaces between the use cases and their adapters, by subject, and the records that they exchange."""
