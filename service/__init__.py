"""The service: job state in Postgres, decisions in rounds, commands to agents.

Rings, outermost first: `main` (composition), then `api`, `loops` and `adapters` (strangers to one
another), then `usecases` (transactions and the ports), then `domain` (pure).
"""
