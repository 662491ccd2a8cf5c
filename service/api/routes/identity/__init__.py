"""Routes for users, projects, tokens, secrets and sign-in."""
