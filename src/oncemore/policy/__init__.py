"""Retry policies: values, backoff, verdicts, decisions, proofs and explanations.

`files` loads policies from YAML; everything else only computes. Imports `errors`, `config`, pure values
and `classifiers`.
"""
