"""Integrations with frameworks that have their own training loop. Each module needs the extra of its name.

No other part of Headway imports these modules.
"""
