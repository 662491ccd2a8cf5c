"""Multiple-choice knapsack behind every policy: problem, dual prices, rounding and exact search."""
