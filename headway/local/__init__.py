"""Headway on one machine: embedded PostgreSQL and Redis, and the stack that `headway up` runs."""
