"""Probes of the connections between hosts: facts about this host, a listener, and a prober."""
