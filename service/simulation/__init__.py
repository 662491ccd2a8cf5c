"""Simulator: the policies and the solver of the service in virtual time.

It calls the domain as the service does. Nothing here depends on a database, and nothing in the domain depends
on the simulation.
"""
