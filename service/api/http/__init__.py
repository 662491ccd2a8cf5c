"""HTTP below the routes: authentication, limits, backpressure, problems, the server."""
