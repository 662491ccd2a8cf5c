"""Machine rental: the offers, the machines to rent for each job, and their costs."""
