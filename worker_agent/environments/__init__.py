"""Python environments of jobs, built by uv from a file of the working folder and shared by the jobs of the node."""
