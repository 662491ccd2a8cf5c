"""Use cases of webhooks: their definitions, and the delivery of their messages."""
