"""The command line: thin verbs over the client, with tables for people and JSON for programs."""
