"""Postgres: the truth. Statements are SQLAlchemy Core; there is no ORM."""
