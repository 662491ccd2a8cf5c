"""Tables and lines that show contract models to people."""
