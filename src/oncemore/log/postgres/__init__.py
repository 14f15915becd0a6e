"""The log in a PostgreSQL schema."""
