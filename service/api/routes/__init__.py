"""Routes of the API, by subject."""
