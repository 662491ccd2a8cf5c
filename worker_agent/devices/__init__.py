"""The devices of this host: inventory, health and probes."""
