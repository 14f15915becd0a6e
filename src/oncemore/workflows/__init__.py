"""Workflows: functions that call steps, wait without holding a thread, and receive signals."""
