"""Placement: from slot counts to slots of nodes."""
