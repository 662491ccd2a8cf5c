"""Hosts of benchmarks and tests as network namespaces, and the faults of their links."""
