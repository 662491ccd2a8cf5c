"""Headway in frameworks that have a training loop of their own. Each module needs the extra of its name.

Nothing here is imported by the rest of Headway.
"""
