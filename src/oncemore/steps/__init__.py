"""Durable steps: one run per key, recorded before and after each attempt."""
