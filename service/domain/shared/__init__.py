"""Types and errors shared by the whole domain."""
