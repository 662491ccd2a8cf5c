"""Models of everything that crosses a process boundary.

The service, the agent, the training library and the client share this package and none of each other's code.
`runtime` uses the standard library only, because ranks import it. The other modules are pydantic models
shared by HTTP bodies, Redis messages and job files.
"""
