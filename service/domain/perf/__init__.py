"""Speed of jobs' progress at each size: throughput models, efficiency, goodput, forecasts and searches."""
