"""Adapters, one file or folder per technology. They import neither the API nor the loops."""
