"""Access to PostgreSQL: sessions, the schema, leadership, dumps.

There are two ways to send SQL, and both are methods of `session.Session`:

- Hot: statements for every report, start, listing and description are plain SQL, each a `Statement` that is a
  constant of its module. `fetch` passes it to the driver, which prepares it once for each connection.
- Cold: everything else is SQLAlchemy Core, sent with `execute`: an expression, or `text` where SQL reads better. It
  costs the process ten times as much as the driver needs for the same statement, and checks names of columns.

Both run in the session's transaction and raise the errors of asyncpg.
"""
