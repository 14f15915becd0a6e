"""Calls to a flaky server."""
