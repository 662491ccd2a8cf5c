"""Worth of machines: hypothetical clusters, and the prices at which decisions value goodput."""
