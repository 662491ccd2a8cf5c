"""A policy and a provider of machines for Headway."""
