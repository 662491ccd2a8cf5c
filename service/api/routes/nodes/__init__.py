"""Routes for nodes, and routes that agents call."""
