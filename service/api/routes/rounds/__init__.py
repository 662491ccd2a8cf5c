"""Routes for the cluster, its policy and its scheduling rounds."""
