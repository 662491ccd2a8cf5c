"""Use cases about jobs: submit, control, generations, changes in place, ends."""
