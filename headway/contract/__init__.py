"""What crosses a process boundary, and nothing else.

The service, the agent, the training library and the client are strangers that meet here.
`runtime` is standard library only (ranks import it); the rest are pydantic models shared by HTTP
bodies, Redis messages and job files.
"""
