"""Use cases about users, projects, tokens and secrets."""
