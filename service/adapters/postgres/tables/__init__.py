"""Tables by subject. `migrations/` must produce exactly these."""
