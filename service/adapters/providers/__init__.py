"""Where machines are rented: one file per provider."""
