"""The log in a PostgreSQL schema. It imports `psycopg` and the log's own modules."""
