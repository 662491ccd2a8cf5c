"""Parts of benchmarks.contention: streams of jobs, the cluster that plays them, the ideal, and the measures."""
