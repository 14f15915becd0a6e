"""The outbox for events and the inbox for messages, with their sinks and sources.

May import `policy`, `log`, `steps`, `control` and `http`.
"""
