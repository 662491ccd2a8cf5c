"""The link to the service: commands in, reports out, credentials."""
