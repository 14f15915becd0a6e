"""What the stores in a database server (PostgreSQL, MySQL) have in common."""
