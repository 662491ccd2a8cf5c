"""Who gets which slots: the table of configurations, the exact solver, placement."""
