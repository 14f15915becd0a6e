"""Events that leave (outbox) and messages that arrive (inbox)."""
