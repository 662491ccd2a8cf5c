"""Verbs about the cluster: a local stack, hosts, machines and budgets."""
