"""Every test here has a room of its own."""

from tests.rooms import _alone, clock, engine

__all__ = ["_alone", "clock", "engine"]
