"""Health and diagnosis of nodes and devices."""
