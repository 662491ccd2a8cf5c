"""The command line: thin verbs over the client, tables for people, JSON for programs."""
