"""Models that the HTTP API answers with and clients read."""
