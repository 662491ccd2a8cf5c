"""Values that describe the world of a replay: nodes, jobs, speeds and spot capacity."""
