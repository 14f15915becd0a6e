"""Retry policies: values, backoff, verdicts, decisions, proofs and explanations.

`files` loads policies from YAML; everything else only computes. Imports `errors`, `settings`, pure values
and `classifiers`.
"""
