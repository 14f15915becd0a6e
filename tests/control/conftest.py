"""Rooms for what people say about work that has not begun."""

from tests.rooms import _alone, clock, engine

__all__ = ["_alone", "clock", "engine"]
