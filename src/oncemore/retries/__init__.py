"""Retries in memory: the decorator, its options, the loop and its time limits."""
