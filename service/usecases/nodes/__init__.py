"""Use cases about nodes: join, expire, quarantine, drain."""
