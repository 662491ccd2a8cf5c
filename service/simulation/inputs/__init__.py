"""Readers that convert files to worlds: workloads, traces and cluster files."""
