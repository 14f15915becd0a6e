"""Schedules: one run of a step per tick, over a whole fleet of workers."""
