"""Access to the objects of a job in a folder or an object store, for the training library and for the agent."""
