"""Decision of a round: the slots of each job, and the reason in words."""
