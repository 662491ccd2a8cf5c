"""Shipping of rank output to the service."""
