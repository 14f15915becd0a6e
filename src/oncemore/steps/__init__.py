"""Durable steps: one run per key, recorded before and after each attempt.

May import `log`, `policy`, `classifiers`, `retries`, `limits` and `artifacts`; higher layers only where
`tests/test_architecture.py` names the reason.
"""
