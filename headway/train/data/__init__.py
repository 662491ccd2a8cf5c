"""The data position: the samples of each step, and their division over the ranks."""
