"""The verbs: each is one transaction and the order of things in it. The ports are in `ports`."""
