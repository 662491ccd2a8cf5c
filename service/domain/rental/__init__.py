"""Renting machines: what is on offer, what to rent for which jobs, what it costs."""
