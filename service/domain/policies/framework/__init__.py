"""Policy interface, and methods that several policies share."""
