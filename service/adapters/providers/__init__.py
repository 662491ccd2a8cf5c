"""Providers of rented machines, one file each."""
