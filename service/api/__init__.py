"""HTTP: parse, one use case, render."""
