"""State transfer between ranks after a membership change."""
