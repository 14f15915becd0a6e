"""The way through: knows the order, not the database."""
