"""Use cases about renting machines."""
