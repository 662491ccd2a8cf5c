"""HTTP interface. A route parses the request, runs one use case and renders the result."""
