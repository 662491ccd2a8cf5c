"""The Python client of the service.

Its class is `headway.client.client.Client`, with one module for each subject.
"""
