"""The service: job state in Postgres, scheduling decisions in rounds, commands to agents.

The layers, outermost first:

1. `main` composes the application.
2. `api`, `loops` and `adapters` do not import one another.
3. `usecases` hold the transactions and the ports.
4. `domain` is pure.
"""
