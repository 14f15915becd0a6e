"""Retries in memory: the decorator, its options, the loop and its time limits.

Loaded by `import oncemore`: only the standard library, and neither `typing` nor `dataclasses`.
"""
