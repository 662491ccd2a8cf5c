"""Parts of benchmarks.contention: streams of jobs, their runs on a cluster, the ideal, and the measures."""
