"""Queues that an inbox reads from."""
