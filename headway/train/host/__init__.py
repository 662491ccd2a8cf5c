"""The process of a rank: its environment variables and its log."""
