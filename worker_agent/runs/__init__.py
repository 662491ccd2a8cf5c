"""The runs of this host: records, reconciliation, start, watch and stop."""
