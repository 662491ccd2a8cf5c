"""Messages to other systems about events: their contents, signatures, addresses and retries."""
