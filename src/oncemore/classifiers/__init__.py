"""Classifiers: they turn any exception into a `Failure` (kind, sent, retry_after, code, rule).

`clients` has one module of rules per library; none of them imports that library. A new library is one
module there and its name in `clients/__init__.py`. Imports `errors` and `policy`.
"""
