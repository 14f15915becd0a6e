"""The log in a NATS JetStream stream.

Imports from `log` and its values only; `log.sqlite.queries` builds the lists of heads. nats-py is loaded by
`connection`, so importing the package without the extra works.
"""
