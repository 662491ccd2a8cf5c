"""The wind tunnel: the policies and the solver of the service, in virtual time.

Another caller of the domain, beside the service: nothing here knows a database, and nothing in the domain knows that it
is simulated.
"""
