"""Routes for health, metrics, diagnosis and help."""
