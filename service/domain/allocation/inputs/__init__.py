"""Input of a policy: jobs, goodput and masks, from a snapshot of the cluster."""
