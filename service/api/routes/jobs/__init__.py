"""Routes for jobs, their bundles, logs and output folders."""
