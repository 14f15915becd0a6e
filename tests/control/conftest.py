"""Rooms for what people say about work that has not begun."""

from tests.fixtures import _isolated, clock, engine

__all__ = ["_isolated", "clock", "engine"]
