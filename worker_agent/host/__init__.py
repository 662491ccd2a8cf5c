"""This host: state folders, ports, instance metadata and the identity of the agent."""
