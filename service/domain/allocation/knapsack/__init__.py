"""The multiple-choice knapsack that every policy is solved as: problem, prices, rounding, exact finish."""
