"""The use cases of the service.

Each is one transaction, or a few, with the order of the steps in it. Ports are in `ports`.
"""
