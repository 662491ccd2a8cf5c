"""Charts of the pages: slots over time, and the curves of a job."""
