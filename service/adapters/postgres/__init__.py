"""PostgreSQL adapters. The database is the source of truth. Statements use SQLAlchemy Core, without an ORM."""
