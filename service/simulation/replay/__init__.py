"""Replay: rounds in virtual time with the policies and the solver of the service."""
