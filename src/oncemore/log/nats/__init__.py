"""The log in a JetStream stream."""
