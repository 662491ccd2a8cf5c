"""Rows of rented machines."""
