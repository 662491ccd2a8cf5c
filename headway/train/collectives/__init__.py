"""Backends of the group in which ranks exchange gradients and state: gloo, NCCL, and those of installed packages."""
