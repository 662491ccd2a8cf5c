"""Configurations of a round: sizes and pools that jobs may be given."""
