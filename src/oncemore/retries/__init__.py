"""Retries in memory: the decorator, its options, the loop and its time limits.

Loaded at the first use of `oncemore.retry`: only the standard library, without `typing` and `dataclasses`. It
may import `policy` and `classifiers`; `limits` and `audit` only when an option needs them.
"""
