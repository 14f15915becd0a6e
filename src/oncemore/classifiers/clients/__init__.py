"""One table of rules per client library; a table names exception classes and never imports them.

Imports `classifiers` and the values of `policy`.
"""
